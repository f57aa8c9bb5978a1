"""Capture: from an FX graph to regions, each with a program, and a refusal for every node left out."""
