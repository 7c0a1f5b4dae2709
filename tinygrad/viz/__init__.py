"""See it: what a program computes, where the time and the memory go, and how each kernel came to be.

    lines.py      which of the user's lines asked for something
    recorder.py   takes note of what happens; events.py, kernels.py, memory.py, graphs.py have what it keeps
    recording.py  a recording as JSON: the data model
    page.py       one HTML file with everything in it: page.html, built of the sources in visualiser/
    trace.py      a trace for Perfetto, written while the program runs
    table.py      tables of time, by kernel, by line, by module
    session.py    what VIZ=1 and PROFILE=1 begin, and `tinygrad.profile()`
    __main__.py   `python -m tinygrad.viz` serves recordings
    picture.py    a graph as SVG

In: `observer.py` calls the recorder. docs/visualiser.md shows how it is used.
"""


from tinygrad.viz.picture import svg as svg
from tinygrad.viz.session import Profile as Profile
from tinygrad.viz.session import profile as profile
