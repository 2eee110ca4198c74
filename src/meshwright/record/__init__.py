"""A run as a folder: its header, its plan, one JSON line per step and per event; the same for trained and simulated runs.

    runs/NAME/run.json  plan.json  steps.jsonl  events.jsonl  [abandoned.jsonl]  and what else a run leaves: logs, checkpoints

lines.py     a JSON object a line      entries.py   a step, an event      header.py    what run.json says
writer.py    a folder as it grows      run.py       a folder, read        summary.py   its steps in a few numbers

docs/records.md has every field. Lines are appended whole and reach the operating system at once, so a killed process loses
nothing and a reader sees whole lines, but for a last one that is being written.
"""
