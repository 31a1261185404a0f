"""What to change in a program so that it compiles less: findings, from start records and the texts of programs."""
