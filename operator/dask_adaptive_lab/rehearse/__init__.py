"""
A user's own script under a policy, on this machine: the operator's loop, planner and agent, with
processes for pods. The demo and the loop's tests are rehearsals too.
"""
