"""Calibration: measurements, ours or somebody else's, become a device profile that knows its own error.

    sources/   one file a published data set: files → Rows
    fit/       Rows → curves (physical form × interpolated ratio)
    evaluate   Rows → predictions, by the simulator's own code
    build      sources + facts → profile with held-out errors
"""
