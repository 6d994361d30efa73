"""The learner's workspace: what `minibroker course list | start | check | diff` does.

A chapter lists its tasks in `exercises.toml`: exercises, which are functions (the fast track), and modules to build
(the build track). Starting a chapter copies its package into `workspace/` with that code taken out. Python then finds
the learner's package before the reference's, because the first path that holds `minibroker/log/` wins (PEP 420), and
every other package stays the reference.

| module      | owns                                                                    |
|-------------|-------------------------------------------------------------------------|
| `house`     | where things stand: the clone, its chapters, the workspace              |
| `exercises` | the format of `exercises.toml`, and what can be wrong with it           |
| `stripping` | taking code out of a source, and leaving the learner an outline         |
| `workspace` | copies of a chapter, old ones too, and how the reference changed since  |
| `whose`     | the order of the paths: whose code Python takes, and saying so          |
| `witness`   | a pytest plugin that writes down what each test did                     |
| `checking`  | running a task's tests and judging it by them                           |
| `comparing` | the difference between the learner's code and the reference             |
| `overview`  | one row per chapter: is it there, how far is the learner                |
| `errors`    | what the tool refuses                                                   |

None of them prints: `minibroker.cli.course` does.
"""
