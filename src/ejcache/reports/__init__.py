"""Reports: start records of many processes, made into one page."""
