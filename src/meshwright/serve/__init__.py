"""The live page: every run of a folder, one of them as it goes, several side by side. It only reads.

files.py    what may be opened      tail.py      new lines of a growing file    steps.py   steps as columns, thinned for a screen
live.py     one run as it is now    outlook.py   when it ends, what it costs    racks.py   which rank is where   books.py   ledgers
shelf.py    all runs, for JSON      metrics.py   the same, for Prometheus
guard.py    who may ask             app.py       the routes                     server.py  the socket and its end
static/     the page
"""
