"""The computation of a federation: pure functions of a plan and of sums, which every site evaluates itself.

    state = computation.start()
    while computation.outcome(state) is None:
        asked = computation.round(state)                            # the question to the sites
        state = computation.step(state, asked, values, scalars)     # the sum of their answers

All sites end on the same bits (`coreg_core.arrays`).
"""
