"""Measuring: the kernels of the models that a user names, timed on this machine, row by row onto the disk.

    cases      what is timed: a kernel and a place on its curve
    grid       models → cases, coarse ones first, so that a small budget gives a usable profile
    arena      memory that cases share
    torchrun   cases → launches of torch's operators, those of the reference engine, over rotating buffers
    cudarun    the same with kvsim_kernels, replayed as CUDA graphs
    clock      launches → median, p20, p80
    store      the file of raw rows beside the profile: append-only, so that a killed run goes on
    machine    what this device is, from its driver and the ceilings measured here
    session    the loop: visits in turn until all are made or the budget is spent
    measured   raw rows → Rows, as the fits take them
    hosttime   what whole steps take beyond the sum of their kernels
    beside     our measurements beside published curves of the same card
    summary    what is printed at the end
    command    all of it, for the command line
"""
