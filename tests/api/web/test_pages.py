"""Pages as the server sends them: escaped, sorted by their address, with errors."""

import html
import re
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import httpx
import pytest

from api.settings import ApiSettings
from api.web.rendering import environment
from records import jobs, networks, tasks
from records.service import devices, submissions
from records.service.owners import tokens
from tests.api import make
from tests.api.conftest import Served, on_each_database, serving
from tests.records import make as rows

if TYPE_CHECKING:
    from records.service.service_models import DeviceState

_BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
_HOSTILE = "<script>alert(1)</script>\"'&{{7*7}}</script>"


@on_each_database
def test_every_page_is_served(served: Served) -> None:
    """Every page has the strict policy and no inline script or style, on both databases."""
    with served.sessions.begin() as session:
        make.tuned(session)

    pages = ("", "jobs/1", "workers", "records", "records/1", "networks", "networks/1")
    for path in (*pages, "reference", "tokens", "audit", "login"):
        answer = served.client.get(f"/{path}", headers=_BROWSER)

        assert answer.status_code == 200, path
        assert answer.headers["content-type"] == "text/html; charset=utf-8", path
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy, path
        assert "unsafe" not in policy, path
        assert not re.search(r"<script(?![^>]*(?: src=|type=\"application/json\"))", answer.text)
        assert not re.search(r"<[^>]+ (?:style|on[a-z]+)=", answer.text), path


def test_hostile_names_are_text(quick: ApiSettings) -> None:
    """Names of jobs, networks, tasks, traces and errors are never markup or templates."""
    with serving(quick) as served:
        with served.sessions.begin() as session:
            job = submissions.submit(session, replace(make.submission(), name=_HOSTILE))[0]
            target_id = rows.target(session)
            network = networks.ensure_network(session, "f" * 64, _HOSTILE, {_HOSTILE: {}})
            workload = replace(rows.workload("w"), name=_HOSTILE)
            networks.record_extraction(session, network.id, target_id, [(workload, 1)], 1)
            submissions.assign(session, job.id, network.id, target_id, {})
            (task,) = tasks.weighted_tasks(session, network.id, target_id)
            assert task.name == _HOSTILE
        pages = ("/", "/jobs/1", "/networks", "/networks/1", "/records?q=alert", "/compare?a=1&b=1")
        for path in pages:
            answer = served.client.get(path, headers=_BROWSER)
            assert answer.status_code == 200, path
            assert "<script>alert" not in answer.text, path
            assert "&lt;script&gt;alert(1)" in answer.text, path
            assert "{{7*7}}" in answer.text, path
        query = served.client.get("/", params={"q": _HOSTILE}, headers=_BROWSER)
        assert "<script>alert" not in query.text


@pytest.mark.parametrize(("sort", "order"), [("weight", [1, 2]), ("-weight", [2, 1])])
def test_tables_sort_without_scripts(quick: ApiSettings, sort: str, order: list[int]) -> None:
    """The address sets the order of a table, and the heading shows it."""
    with serving(quick) as served:
        with served.sessions.begin() as session:
            make.tuned(session)

        page = served.client.get("/jobs/1", params={"sort": sort}, headers=_BROWSER).text

    calls = re.findall(r'data-label="Calls">(\d+)<', page)
    assert [int(number) for number in calls] == order
    direction = "descending" if sort.startswith("-") else "ascending"
    assert len(re.findall(r"aria-sort=", page)) == 1
    assert re.search(rf'aria-sort="{direction}">\s*<a id="sort-weight"', page)


def test_unknown_orders_are_the_default(quick: ApiSettings) -> None:
    """An invented order in the address still shows the table."""
    with serving(quick) as served:
        with served.sessions.begin() as session:
            make.tuned(session)
        for sort in ("", "nonsense", "-", "--trials", "__class__"):
            answer = served.client.get("/jobs/1", params={"sort": sort}, headers=_BROWSER)
            assert answer.status_code == 200, sort
            assert 'aria-sort="descending"' in answer.text, sort


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/nowhere", 404),
        ("/jobs/99", 404),
        ("/jobs/x", 422),
        ("/records/99", 404),
        ("/networks/99", 404),
        ("/?copy=99", 404),
        ("/records/" + "9" * 30, 422),
        ("/records?task=" + "9" * 30, 422),
        ("/networks?cursor=" + "9" * 30, 422),
        ("/audit?cursor=" + "9" * 30, 422),
    ],
)
def test_problems_are_pages_for_people(shared: Served, path: str, status: int) -> None:
    """A browser gets a page with the error, and a program a document."""
    page = shared.client.get(path, headers=_BROWSER)
    document = shared.client.get("/api/v1/jobs/99", headers=_BROWSER)
    assert page.status_code == status
    assert page.headers["content-type"].startswith("text/html")
    assert "Go to jobs" in page.text
    assert document.headers["content-type"] == "application/problem+json"


def test_invalid_numbers_compare_nothing(quick: ApiSettings) -> None:
    """The page shows the form again."""
    with serving(quick) as served:
        answer = served.client.get("/compare?b=1&a=" + "9" * 5000, headers=_BROWSER)
    assert answer.status_code == 200


def test_a_failed_action_shows_its_reason(quick: ApiSettings) -> None:
    """The page of the job shows the reason, with the status of the error."""
    with serving(quick) as served:
        with served.sessions.begin() as session:
            jobs.set_state(session, make.job(session).id, "done")
        for action, form, status, message in (
            ("resume", {}, 409, "is done"),
            ("cancel", {}, 409, "is done"),
            ("budget", {}, 422, "give trials"),
            ("budget", {"trials": "-1"}, 422, "trials"),
            ("priority", {"priority": "high"}, 422, "priority"),
            ("build", {}, 409, "not split into tasks yet"),
        ):
            answer = served.client.post(f"/jobs/1/{action}", data=form, headers=_BROWSER)
            assert answer.status_code == status, action
            alert = answer.text.partition('role="alert"')[2].partition("</div>")[0]
            assert message in alert, (action, alert)


def test_forms_control_a_job(quick: ApiSettings) -> None:
    """Each form calls its route and redirects to the job."""
    with serving(quick) as served:
        with served.sessions.begin() as session:
            make.job(session)
        for action, form in (
            ("pause", {}),
            ("resume", {}),
            ("budget", {"trials": "200", "seconds": ""}),
            ("priority", {"priority": "-2"}),
            ("cancel", {}),
        ):
            answer = served.client.post(f"/jobs/1/{action}", data=form, headers=_BROWSER)
            assert (answer.status_code, answer.headers["location"]) == (303, "/jobs/1"), action
        job = served.client.get("/api/v1/jobs/1").json()["job"]
        assert (job["state"], job["budget_trials"], job["priority"]) == ("cancelled", 200, -2)
        assert served.client.post("/jobs/1/delete").headers["location"] == "/"
        assert served.client.get("/jobs/1", headers=_BROWSER).status_code == 404


def test_another_site_cannot_send_a_form(quick: ApiSettings) -> None:
    """A form on a page of another site changes nothing."""
    with serving(quick) as served:
        with served.sessions.begin() as session:
            make.job(session)
        for header in ({"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}):
            answer = served.client.post("/jobs/1/cancel", headers={**_BROWSER, **header})
            assert answer.status_code == 403
        assert served.client.get("/api/v1/jobs/1").json()["job"]["state"] == "queued"


def wrong_fields(page: str) -> set[str]:
    """Return the names of the fields that a page marks as invalid."""
    return set(re.findall(r'name="(\w+)"[^>]*aria-invalid="true"', page))


def test_a_form_becomes_a_job(quick: ApiSettings) -> None:
    """A valid form becomes a job, and an invalid one is shown again with its texts."""
    with serving(quick) as served:
        model = {"model": ("net.onnx", make.ONNX)}
        answer = served.client.post("/jobs", files=model, data={"trials": "8", "input": ""})
        assert (answer.status_code, answer.headers["location"]) == (303, "/jobs/1")

        sent = {"name": "kept <here>", "trials": "many", "zoo": "mlp"}
        refused = served.client.post("/jobs", files={"x": b""}, data=sent, headers=_BROWSER)
        assert refused.status_code == 422
        refused = served.client.post("/jobs", files=model, data=sent, headers=_BROWSER)
        assert refused.status_code == 422
        assert 'value="kept &lt;here&gt;"' in refused.text
        assert wrong_fields(refused.text) == {"trials"}


def test_a_failed_job_is_corrected_and_submitted_again(quick: ApiSettings) -> None:
    """Its page gives the reason and a form with its options, which tunes the uploaded model."""
    options = {"trials": "8", "bucket": "batch=1,4:2", "mask": "m=1", "name": "broken"}
    empty = {"model": ("", b"")}
    with serving(quick) as served:
        served.client.post("/jobs", files={"model": ("net.onnx", make.ONNX)}, data=options)
        with served.sessions.begin() as session:
            jobs.set_state(session, 1, "failed", "no operator <Odd>")
        page = served.client.get("/jobs/1", headers=_BROWSER).text
        form = served.client.get("/?copy=1", headers=_BROWSER).text.partition('id="submit-form"')[2]
        fields = form.partition("</form>")[0]
        sent = dict(re.findall(r'<input[^>]* name="(\w+)"[^>]* value="([^"]+)"', fields))
        again = served.client.post("/jobs", files=empty, data={**sent, "trials": "9"})

        assert "no operator &lt;Odd&gt;" in page
        assert 'href="/?copy=1"' in page
        assert re.findall("<h2[^>]*>(.*)</h2>", page) == ["Request"], "nothing that is empty"
        assert {name: sent[name] for name in options} == options
        assert (again.status_code, again.headers["location"]) == (303, "/jobs/1")
        with served.sessions() as session:
            job = jobs.get_job(session, 1)
        assert (job.state, job.budget_trials) == ("queued", 9)
        other = served.client.post("/jobs", files=empty, data={**sent, "seed": "4"})
        with served.sessions() as session:
            first, second = (jobs.get_job(session, number).request for number in (1, 2))
        assert (other.status_code, first and first["models"]) == (303, second and second["models"])
        log = served.client.get("/audit", headers=_BROWSER).text
        assert log.count("<div>models of: 1</div>") == 2
        unknown = served.client.post("/jobs", files=empty, data={"models_of": "7"})
        assert unknown.status_code == 404


def test_a_copied_form_has_every_option_of_its_job(quick: ApiSettings) -> None:
    """Sent as it is, it returns the job: nothing of the request is lost, shown or not."""
    data = {
        "zoo": ["mlp?batch=2", "mlp?batch=3"],
        "input": ["a=1,8", "b=true", "a=2,8", "b=false", "a=4,8", "b=true"],
        "trials": "2000000",
        "seconds": "1234567.5",
        "priority": "-1",
        "objective": "requirements",
        "require_ms": ["1.23456789"],
        "task": ["dense", "softmax"],
        "seed": "7",
        "trials_per_round": "16",
        "allocator": "round-robin",
        "cost_model": "random",
        "random_weights": "5",
        "cooldown_ms": "3",
    }
    with serving(quick) as served:
        made = served.client.post("/api/v1/tune", files={"model": ("", b"")}, data=data)
        assert made.status_code == 202, made.text
        page = served.client.get("/?copy=1", headers=_BROWSER).text
        fields = page.partition('id="submit-form"')[2].partition("</form>")[0]
        sent: dict[str, list[str]] = {"objective": re.findall("<option selected>(.+?)<", fields)}
        for name, value in re.findall(r'<input[^>]* name="(\w+)"[^>]* value="([^"]+)"', fields):
            sent.setdefault(name, []).append(html.unescape(value))
        again = served.client.post("/jobs", files={"model": ("", b"")}, data=sent)

        assert (again.status_code, again.headers["location"]) == (303, "/jobs/1"), again.text
        assert {name: sent[name] for name in ("trials", "seconds", "priority")} == {
            name: [data[name]] for name in ("trials", "seconds", "priority")
        }


def test_tokens_are_made_and_ended_on_their_page(quick: ApiSettings) -> None:
    """A secret is shown once and works until it is renewed or revoked; the log has each change."""

    def secret_in(page: str) -> str:
        (secret,) = re.findall(r"tuner_[\w-]{20,}", page)
        return str(secret)

    def status(secret: str) -> int:
        header = {"authorization": f"Bearer {secret}"}
        return served.client.get("/api/v1/jobs", headers=header).status_code

    with serving(quick) as served:
        form = {"name": "ann", "scope": "submit", "days": "9", "quotas": "jobs=2"}
        first = secret_in(served.client.post("/tokens", data=form, headers=_BROWSER).text)
        assert status(first) == 200
        assert first not in served.client.get("/tokens", headers=_BROWSER).text
        for _ in range(2):
            second = secret_in(served.client.post("/tokens/1/renew", headers=_BROWSER).text)
            with served.sessions() as session:
                (token,) = tokens.list_tokens(session)
            assert token.expires is not None
            assert token.expires - token.created == timedelta(days=9)
        assert served.client.post("/tokens/1/revoke", headers=_BROWSER).status_code == 200
        assert (status(second), status("tuner_x")) == (401, 401)
        for wrong in (
            {"name": "ann"},
            {"name": ""},
            {"days": "-1"},
            {"days": "x"},
            {"quotas": "x"},
        ):
            sent = {**form, "name": "bob", **wrong}
            answer = served.client.post("/tokens", data=sent, headers=_BROWSER)
            assert (answer.status_code, 'role="alert"' in answer.text) == (422, True), wrong
        assert served.client.post("/tokens/7/revoke", headers=_BROWSER).status_code == 404
        log = served.client.get("/audit", headers=_BROWSER).text
        with served.sessions.begin() as session:
            _, reader = tokens.create_token(session, "reader", ["submit"])
        header = {"authorization": f"Bearer {reader}", **_BROWSER}
        assert served.client.get("/tokens", headers=header).status_code == 403

    assert "<div>quotas: jobs 2.0</div>" in log
    assert [log.count(f"token-{action}") for action in ("create", "renew", "revoke")] == [1, 2, 1]


def test_different_networks_are_not_called_faster(quick: ApiSettings) -> None:
    """Latencies of two networks do not compare; one that is not loaded is not called another."""
    with serving(quick) as served:
        with served.sessions.begin() as session:
            make.tuned(session, "one")
            make.tuned(session, "two")
            make.job(session, "three")
        page = served.client.get("/compare?a=1&b=2", headers=_BROWSER).text
        unknown = served.client.get("/compare?a=1&b=3", headers=_BROWSER).text

    assert "different networks" in page
    assert "times as fast" not in page
    assert "different networks" not in unknown
    assert "Job 3 (three) is queued and has no latency.</strong>" in unknown


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        ({"target": "a\x1b"}, "target"),
        ({"name": "a\x1b", "target": "llvm"}, "name"),
        ({"input": "data=1,x", "name": "data"}, "input"),
        ({"objective": "requirements", "name": "requirements"}, "require_ms"),
        ({"bucket": "length=x"}, "bucket"),
        ({"mask": "mask=x"}, "mask"),
        ({"priority": "1000"}, "priority"),
        ({"zoo": "mlp\x1b"}, "zoo"),
    ],
)
def test_an_invalid_form_marks_its_field_alone(
    shared: Served, sent: dict[str, str], field: str
) -> None:
    """Only the invalid field is marked; a field that the page lacks is named."""
    answer = shared.client.post(
        "/jobs", files={"model": ("net.onnx", make.ONNX)}, data=sent, headers=_BROWSER
    )

    assert answer.status_code == 422
    assert wrong_fields(answer.text) == {field} - {"require_ms"}
    assert field in answer.text


def test_sign_in(quick: ApiSettings) -> None:
    """Pages redirect to the form, and a valid token becomes a cookie hidden from scripts."""
    with serving(replace(quick, require_tokens=True)) as served:
        with served.sessions.begin() as session:
            _, secret = tokens.create_token(session, "ann", ["read"])
        asked = served.client.get("/jobs/7?sort=id", headers=_BROWSER)
        assert (asked.status_code, asked.headers["location"]) == (
            303,
            "/login?next=%2Fjobs%2F7%3Fsort%3Did",
        )
        bad = served.client.post("/login", data={"token": "tuner_no"}, headers=_BROWSER)
        assert bad.status_code == 401
        assert "set-cookie" not in bad.headers
        good = served.client.post("/login", data={"token": secret, "next": "//evil.example"})
        assert (good.status_code, good.headers["location"]) == (303, "/")
        cookie = good.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        page = served.client.get("/", headers=_BROWSER)
        assert "Sign out ann" in page.text
        # The token reads; it neither submits nor sees the audit log.
        assert served.client.post("/jobs/1/cancel", headers=_BROWSER).status_code == 403
        assert served.client.get("/audit", headers=_BROWSER).status_code == 403
        served.client.post("/logout")
        served.client.cookies.clear()
        assert served.client.get("/", headers=_BROWSER).status_code == 303


def test_assets_are_cached_by_content(quick: ApiSettings) -> None:
    """The address of an asset contains its hash, so it is cached for ever and compressed."""
    with serving(quick) as served:
        page = served.client.get("/jobs/1", headers=_BROWSER).text
        addresses = re.findall(r'(?:href|src|data-plotly)="(/static/[^"]+)"', page)
        assert len(addresses) >= 4
        for address in addresses:
            answer = served.client.get(address)
            assert answer.status_code == 200
            assert "immutable" in answer.headers["cache-control"]
            assert answer.headers["content-encoding"] == "gzip"
            again = served.client.get(address, headers={"if-none-match": answer.headers["etag"]})
            assert again.status_code == 304
            old = served.client.get(re.sub(r"/static/\w+/", "/static/0/", address))
            assert old.headers["cache-control"] == "no-cache"
        for path in ("/static/0/base.css.bak", "/static/0/..%2Fpages.py", "/static/0/pages.py"):
            assert served.client.get(path).status_code == 404


def test_records_are_browsed_by_pages(quick: ApiSettings) -> None:
    """Each record appears once; failures alone on request, and those of a task by latency."""
    with serving(quick) as served:
        with served.sessions.begin() as session:
            make.tuned(session, n_trials=120)
        newest = _all_records(served.client, "/records")
        assert newest == list(range(120, 0, -1))
        assert _all_records(served.client, "/records?failed=1") == [120]
        assert _all_records(served.client, "/records?task=1&failed=1") == [120]
        # Record n took a hundredth of a second by n.
        assert _all_records(served.client, "/records?task=1") == list(range(119, 0, -1))
        page = served.client.get("/records/1", headers=_BROWSER).text
        scale = re.findall(r'<p class="scale.*?<span class="num">([\d.,]+) ms', page)
        shown = re.findall(r'samples">([\d.,]+)', page)
        assert scale
        assert scale < shown, "the scale has room on both sides"


def _all_records(client: httpx.Client, path: str) -> list[int]:
    records: list[int] = []
    while path:
        page = client.get(path, headers=_BROWSER).text
        records += [
            int(number)
            for number in re.findall(r'data-label="Record"><a href="/records/(\d+)"', page)
        ]
        following = re.search(r'href="([^"]+)" rel="next"', page)
        path = following[1].replace("&amp;", "&") if following else ""
    return records


def test_devices_without_work_come_first_with_their_reason(quick: ApiSettings) -> None:
    """Devices that are apart or lost come first, and their reason is escaped."""
    reasons: dict[DeviceState, str] = {"idle": "", "apart": _HOSTILE}
    with serving(quick) as served:
        with served.sessions.begin() as session:
            reports = [
                devices.DeviceReport(
                    name=f"h/{state}", worker="w", host="h", fingerprint={}, state=state, reason=why
                )
                for state, why in reasons.items()
            ]
            devices.report(session, reports)

        page = served.client.get("/workers", headers=_BROWSER).text

    assert re.findall(r'<span class="mono">(h/\w+)<', page) == ["h/apart", "h/idle"]
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_tasks_have_the_numbers_of_the_command_line(quick: ApiSettings) -> None:
    """Table, picks and chart show the numbers that ``tuner records list --task`` takes."""
    with serving(quick) as served:
        with served.sessions.begin() as session:
            # So that numbers of tasks are not those of rows.
            network = networks.ensure_network(session, "0" * 64, "other", {})
            target_id = rows.target(session)
            several = [(rows.workload(f"w{number}"), 1) for number in range(3)]
            networks.record_extraction(session, network.id, target_id, several, 3)
            make.tuned(session)
        tasks_of = {
            task["task_id"] for task in served.client.get("/api/v1/jobs/1/tasks").json()["tasks"]
        }
        lines = served.client.get("/api/v1/jobs/1/history").json()["tasks"]
        page = served.client.get("/jobs/1", headers=_BROWSER).text

    assert min(tasks_of) > 3
    assert {int(number) for number in re.findall(r'data-label="ID">(\d+)<', page)} == tasks_of
    assert {int(number) for number in re.findall(r'data-label="Task">(\d+) ·', page)} <= tasks_of
    assert {line["task"] for line in lines} - {None} <= tasks_of


def test_commands_in_messages_are_code() -> None:
    """Text between backticks is code, names break before a shape, and nothing else is markup."""
    show, split = (environment().filters[name] for name in ("commands", "breakable"))

    assert split("<b>[1x2]") == "&lt;b&gt;<wbr>[1x2]"
    assert show("`tuner tune <x>` resumes it") == "<code>tuner tune &lt;x&gt;</code> resumes it"
