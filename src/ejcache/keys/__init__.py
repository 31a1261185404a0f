"""What makes two compilations the same: named components, canonical forms, one digest."""
