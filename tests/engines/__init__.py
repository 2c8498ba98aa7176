"""Real container engines, private to a test session, with no init system. A guide for whoever adds tests.

`machine.Machine` is a machine of its own: namespaces, one cgroup layout, a root whose changes lie in memory: this
machine's, or with `system=FOLDER` another Debian's. So an engine may be configured in /etc, and whatever it leaves goes
with the machine. `machine.run(...)`, `check`, `start`, `daemon` run programs in it; `write` and `read` are for files of
its root. Folders under `machine.folder`, the session's folder and the checkout are the same inside and outside, so
sockets and bundles are reached from the test itself.

An engine is a class, `docker.Docker`, `containerd.Containerd`, `podman.Podman` or `podman.RootlessPodman`, made with a
machine and a gpuhook installation (`.world`, a World of tests/conftest.py, whose low-level runtime and configuration
each test sets). It has `name`, `version`, `config`, `start()`, `stop()`, `load(ARCHIVE)`, `remove_all()`; calling it
calls its client (docker, ctr, podman) and gives `.code .out .err`, `check` gives the output of what must not fail,
`begin` does not wait. `Containerd.run` and `Podman.run` add what each container needs here; `Containerd.cri()` is a
client of the CRI (cri.py); the daemons have `restart()`, docker `reload()`. The session fixture `engine(Class, layout,
system)` starts one when it is first asked for and keeps it; a fixture of the test file sets the driver and runtime
before each test and removes the containers after it (see test_docker.py). `configure.configure(daemon, *options)` and
`unconfigure(daemon)` are gpuhook's commands in the engine's machine; the engine is restarted by the test.

`cases` has what the tests of several engines do alike. `archive` has the images: PLAIN asks for nothing, GPU says
`all`, NEWER demands a newer CUDA than the driver's, PAUSE is a pod's sandbox. Their tree has `opendev`, as in
tests/images.py.

`results.works(engine, "exec")` and `results.fails(engine, "exec", "why")` write down what docs/engines.md is made of;
call them after the assertions that prove it. What is known to fail is asserted with its exact text, then written down.
`golden(NAME, TEXT, MACHINE)` compares what an engine shows with tests/golden/engines.

docker takes 0.4 s to start and 0.5 s to load the images, podman 0.6 and 1.5, containerd 0.4 and 3; a container takes
0.3 to 0.6 s, rootless up to 2: share engines, and keep cases few.
"""
