"""Real container engines, private to a test session, with no init system. A guide for whoever adds tests.

`machine.Machine` is a machine of its own: namespaces, one cgroup layout, a root whose changes lie in memory: this
machine's, or with `system=FOLDER` another Debian's. So an engine may be configured in /etc, and whatever it leaves goes
with the machine. `machine.run(...)`, `check`, `start`, `daemon` run programs in it; `write` and `read` are for files of
its root. Folders under `machine.folder`, the session's folder and the checkout are the same inside and outside, so
sockets and bundles are reached from the test itself.

An engine is a class (`docker.Docker`) made with a machine and a gpuhook installation (`.world`, a World of
tests/conftest.py, whose low-level runtime and configuration each test sets). It has `name`, `version`, `start()`,
`stop()`, `load(ARCHIVE)`, `remove_all()`; calling it calls its client and gives `.code .out .err`. The session fixture
`engine(Class, layout, system)` starts it when it is first asked for and keeps it; a fixture of the test file sets the
driver and runtime before each test and removes the containers after it. `configure.configure(engine, *options)` is
`gpuhook configure`.

`archive` has the images: PLAIN asks for nothing, GPU says `all`, NEWER demands a newer CUDA than the driver's, PAUSE is
a pod's sandbox. Their tree has `opendev`, as in tests/images.py.

`results.works(engine, "exec")` and `results.fails(engine, "exec", "why")` write down what docs/engines.md is made of;
call them after the assertions that prove it. What is known to fail is asserted with its exact text, then written down.
`golden(NAME, TEXT, MACHINE)` compares what an engine shows with tests/golden/engines.

A start of docker takes 0.4 s, loading the images 0.5 s, a container 0.3 s: share engines, and keep cases few.
"""
