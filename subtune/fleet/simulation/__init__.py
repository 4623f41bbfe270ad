"""A fleet's tuning with devices that are not there: the search itself, replayed measurements, a simulated clock.

In: the pools of work of several targets, and how long builds and measurements took in a recorded run. Out: what so many
devices would do with their time.
"""
