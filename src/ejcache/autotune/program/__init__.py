"""Tunes the operations that a program calls, before the program runs."""
