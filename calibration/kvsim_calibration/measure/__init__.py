"""`kvsim measure`: replay a trace against a live OpenAI-compatible server and record a Result."""
