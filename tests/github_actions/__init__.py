"""Runs workflows of GitHub Actions on this machine, for tests.

What is emulated: the order of jobs by `needs`; `strategy.matrix` with `include` or lists; called workflows of the
repository; composite actions of the repository; `if` of jobs and steps; `${{ }}` with the contexts and functions of
`expressions.py`; outputs of steps and jobs; `run:` steps in bash with GitHub's options; `env`, `working-directory`,
GITHUB_ENV, GITHUB_OUTPUT, GITHUB_PATH, GITHUB_STEP_SUMMARY; the actions checkout, setup-python, upload-artifact,
download-artifact, cache/restore and cache/save as far as the workflows here use them; "Re-run failed
jobs".

What is not emulated: `LEFT_OUT` in `workflow.py` lists the keys of a workflow that have no effect here, and a step has
no time limit. One machine
runs every job, one after the other: jobs share its home folder, its programs and its network. There is no token and no
secret. Everything else that a workflow has, another action, function, context or key, raises NotEmulated.
"""
