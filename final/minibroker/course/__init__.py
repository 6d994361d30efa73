"""The learner's workspace, and the work of `minibroker course list | start | check | hint | status | diff`.

A chapter lists its tasks in `exercises.toml`: exercises, which are functions (the fast track), and modules to build
(the build track). Starting a chapter copies the packages with its tasks into `workspace/`, with that code taken out.
Python then finds the learner's packages before the reference's, because the first path that holds, say,
`minibroker/log/` wins (PEP 420), and every other package stays the reference. If the copy of another chapter is
unfinished, a run uses the reference instead.

| module         | owns                                                                        |
|----------------|-----------------------------------------------------------------------------|
| `repository`   | the paths of the repository, its chapters and the workspace                 |
| `exercises`    | the format of `exercises.toml`, and the search for mistakes in it           |
| `stripping`    | taking code out of a source, and leaving the learner an outline             |
| `workspace`    | a chapter's copies, current and old, and later changes of the reference     |
| `choosing`     | which copies a run uses, and why it leaves the others out                   |
| `import_order` | the order of `sys.path`, which makes Python import the chosen copies        |
| `recorder`     | a pytest plugin that records what each test did                             |
| `checking`     | running a task's tests and judging the task by them                         |
| `explaining`   | what a failed test expected: bytes, a transcript, the seed                  |
| `comparing`    | the difference between the learner's code and the reference                 |
| `teaching`     | hints in steps, and the section of the lesson to read again                 |
| `overview`     | one row per chapter, with the learner's progress                            |
| `errors`       | the errors of the tool                                                      |

None of them prints; `minibroker.cli.course` does.
"""
