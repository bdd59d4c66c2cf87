"""Delegated jobs, what they may do, and what they did.

    WorkJob           queued -> running -> completed | failed | cancelled | interrupted
                      | budget_exhausted
                      (queued may end directly; a released job is queued again)
    WorkProviderStep  started -> completed | failed | cancelled | interrupted
    WorkStep          requested -> running -> succeeded | failed | refused | cancelled
                      | unavailable | interrupted
    JobReport         written once; JobReportMessage links it to the message that shows it
    Computer          a place where jobs may work, and what they may do there

The database holds every rule said here: see each model's constraints and triggers.
"""

from work.models.computers import Computer
from work.models.jobs import WorkJob
from work.models.reports import JobReport, JobReportMessage
from work.models.steps import WorkProviderStep, WorkStep

__all__ = [
    "Computer",
    "JobReport",
    "JobReportMessage",
    "WorkJob",
    "WorkProviderStep",
    "WorkStep",
]
