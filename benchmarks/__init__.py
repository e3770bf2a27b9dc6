"""What things cost, measured: one file per question, results committed with the machine they came from."""
