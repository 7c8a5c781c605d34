"""Ready-made pipelines, called jobs. job.py has the form of a job's module, and the list of all."""
