"""Print how large the project is, by part: see :mod:`benchmarks.house.run`."""

from benchmarks.house.run import main

if __name__ == "__main__":
    main()
