"""All pages of the dashboard, and their assets."""

from fastapi import APIRouter

from api.web import assets
from api.web.forms import job_forms, submit_form
from api.web.pages import (
    compare_page,
    job_list,
    job_page,
    record_pages,
    reference_page,
    signing_in,
    token_pages,
    worker_pages,
)

router = APIRouter(include_in_schema=False)
for part in (
    assets,
    signing_in,
    job_list,
    submit_form,
    job_forms,
    job_page,
    record_pages,
    compare_page,
    worker_pages,
    token_pages,
    reference_page,
):
    router.include_router(part.router)
