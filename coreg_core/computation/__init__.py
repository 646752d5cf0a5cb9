"""The computation of a federation, step by step: pure functions of a plan and of sums, which every site evaluates itself."""
