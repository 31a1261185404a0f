"""What direct mode needs of JAX: functions with a miss of ours, parsed calls, executables that run without a trace."""
