"""Commands that `dask-adaptive` has where this package is installed: an entry point leads here."""

#: Commands and their help, as in `dask_adaptive.cli.main`: each is `command` in a module here.
COMMANDS = {
    "rehearse": "Run a script under a policy on this machine.",
    "record": "Record the load of a cluster for `simulate`.",
    "simulate": "Simulate a policy on recorded work.",
    "recommend": "Suggest policies for recorded work, with their costs.",
}
