"""What is watched from outside: the metrics there are, a Grafana dashboard of them, and alert rules.

Values and text only. The server fills the metrics in, the command line hands out the rest.
"""
