"""What happens to a call of a direct function that C++ does not know yet."""
