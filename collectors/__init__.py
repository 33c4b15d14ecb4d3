"""What gathers evidence: the agent inside the program, and one file per kind of evidence."""
