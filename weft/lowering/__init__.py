"""Between plan and text: what a kernel does, statement by statement."""
