"""kvsim's interactive app (Streamlit, Altair): `kvsim app`. It uses kvsim's public names only.

Results → `charts` (pure functions, no Streamlit) and `findings` (sentences, computed) → `views` (one file a view).
"""
