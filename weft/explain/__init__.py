"""What shares a kernel, what does not, and the one reason why: the answers come from the values the planner used."""
