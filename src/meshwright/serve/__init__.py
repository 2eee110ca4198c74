"""The live page: all runs of a folder, one run while it trains, or several runs side by side. It only reads.

files.py    files it may open       tail.py      new lines of a growing file    steps.py   steps as columns, thinned for a screen
live.py     one run as it is now    outlook.py   when it ends, what it costs    racks.py   which rank is where   books.py   ledgers
shelf.py    all runs, for JSON      metrics.py   the same, for Prometheus
guard.py    who may connect         app.py       the routes                     server.py  the socket, from bind to close
static/     the page
"""
