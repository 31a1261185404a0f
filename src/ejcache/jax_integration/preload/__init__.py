"""Preload: the executables that earlier runs of a program used, loaded before the program asks for them."""
