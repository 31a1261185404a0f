"""The processes of a job that run one program together: what they agree on, and what they send each other."""
