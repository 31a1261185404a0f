"""Programs that commands start in processes of their own."""
