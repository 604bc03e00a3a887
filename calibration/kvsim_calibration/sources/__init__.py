"""Published measurements, one file a data set: its columns, units, filters and licence."""
