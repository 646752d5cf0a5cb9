"""What a federation computes, step by step: pure functions of a plan and of sums, which every site takes by itself."""
