"""Replicas that come and go while a run trains: who takes part, what they keep in memory, and how a state moves between them.

A *generation* is the time between two changes of the replicas. The process that started the ranks announces it (`supervisor`); each rank
leaves the old groups, meets the others under the number of the generation (`member`), and takes over the state (`carry`, `handover`).
"""
