"""What raypool costs, measured: `python -m benchmarks --help`, or `make bench`.

Families: `engine.*`, the decision core alone, in processor time; `ray-default.*` and `ray-tuned.*`, the whole of it
on a Ray cluster of this machine whose nodes report every 100 or every 10 ms, in wall-clock time beside what bare Ray
takes in the same run. The other files are programs of their own.
"""
