"""The program `holdline`, carried by a wheel. This package has no API: run the program."""
