"""What raypool costs, measured: `python -m benchmarks --help`, or `make bench`.

Families: `engine.*`, the decision core alone, in processor time; `ray.*`, the whole of it on a Ray cluster of this
machine, in wall-clock time beside what bare Ray takes in the same run. The other files are programs of their own.
"""
