CREATE TABLE public.alembic_version (
    version_num character varying(32) NOT NULL
);
CREATE TABLE public.api_token (
    id integer NOT NULL,
    name text NOT NULL,
    digest text NOT NULL,
    scopes json NOT NULL,
    created timestamp with time zone NOT NULL,
    expires timestamp with time zone,
    revoked timestamp with time zone,
    last_used timestamp with time zone
);
CREATE SEQUENCE public.api_token_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.api_token_id_seq OWNED BY public.api_token.id;
CREATE TABLE public.audit_event (
    id integer NOT NULL,
    created timestamp with time zone NOT NULL,
    subject text NOT NULL,
    address text NOT NULL,
    action text NOT NULL,
    job_id integer,
    detail json NOT NULL
);
CREATE SEQUENCE public.audit_event_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.audit_event_id_seq OWNED BY public.audit_event.id;
CREATE TABLE public.best_record (
    task_id integer NOT NULL,
    record_id integer NOT NULL,
    latency double precision NOT NULL,
    confirmed boolean NOT NULL
);
CREATE TABLE public.build (
    id integer NOT NULL,
    job_id integer NOT NULL,
    model_index integer NOT NULL,
    strict boolean NOT NULL,
    state text NOT NULL,
    message text,
    library_key text,
    archive text,
    sha256 text,
    n_bytes bigint,
    created timestamp with time zone NOT NULL,
    updated timestamp with time zone NOT NULL,
    CONSTRAINT ck_build_state_known CHECK ((state = ANY (ARRAY['queued'::text, 'running'::text, 'done'::text, 'failed'::text])))
);
CREATE SEQUENCE public.build_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.build_id_seq OWNED BY public.build.id;
CREATE TABLE public.cost_model (
    target_id integer NOT NULL,
    kind text NOT NULL,
    n_records integer NOT NULL,
    blob bytea NOT NULL,
    created timestamp with time zone NOT NULL
);
CREATE TABLE public.event (
    job_id integer NOT NULL,
    sequence integer NOT NULL,
    kind text NOT NULL,
    data json NOT NULL,
    created timestamp with time zone NOT NULL
);
CREATE TABLE public.extraction (
    network_id integer NOT NULL,
    target_id integer NOT NULL,
    notes json NOT NULL,
    n_kernel_calls integer NOT NULL,
    extra json NOT NULL
);
CREATE TABLE public.idempotency_key (
    subject text NOT NULL,
    key text NOT NULL,
    fingerprint text NOT NULL,
    job_id integer NOT NULL,
    created timestamp with time zone NOT NULL
);
CREATE TABLE public.imported_round (
    task_id integer NOT NULL,
    n_measured integer NOT NULL,
    n_failed integer NOT NULL,
    n_timeouts integer NOT NULL,
    best_secs double precision,
    run_secs double precision NOT NULL
);
CREATE TABLE public.job (
    id integer NOT NULL,
    network_id integer,
    target_id integer,
    objective text NOT NULL,
    seed bigint NOT NULL,
    budget_trials integer,
    budget_secs double precision,
    spent_secs double precision NOT NULL,
    priority integer NOT NULL,
    state text NOT NULL,
    settings json NOT NULL,
    message text,
    created timestamp with time zone NOT NULL,
    updated timestamp with time zone NOT NULL,
    reached_trials integer,
    virtual_secs double precision DEFAULT '0'::double precision NOT NULL,
    name text,
    request json,
    submission text DEFAULT ''::text NOT NULL,
    hidden boolean DEFAULT false NOT NULL,
    n_events integer DEFAULT 0 NOT NULL,
    CONSTRAINT ck_job_state_known CHECK ((state = ANY (ARRAY['queued'::text, 'running'::text, 'paused'::text, 'done'::text, 'failed'::text, 'cancelled'::text])))
);
CREATE TABLE public.job_failure (
    job_id integer NOT NULL,
    error_kind text NOT NULL,
    n_trials integer NOT NULL,
    record_id integer NOT NULL
);
CREATE SEQUENCE public.job_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.job_id_seq OWNED BY public.job.id;
CREATE TABLE public.job_status (
    job_id integer NOT NULL,
    phase text NOT NULL,
    task_id integer,
    gains json NOT NULL,
    total_secs double precision,
    spent_trials integer NOT NULL,
    outlook json,
    updated timestamp with time zone NOT NULL
);
CREATE TABLE public.lease (
    name text NOT NULL,
    holder text NOT NULL,
    epoch bigint NOT NULL,
    expires timestamp with time zone NOT NULL
);
CREATE TABLE public.library (
    id integer NOT NULL,
    key text NOT NULL,
    network_id integer,
    target_id integer NOT NULL,
    manifest json NOT NULL,
    path text NOT NULL,
    created timestamp with time zone NOT NULL
);
CREATE SEQUENCE public.library_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.library_id_seq OWNED BY public.library.id;
CREATE TABLE public.measure_feature (
    record_id integer NOT NULL,
    features bytea NOT NULL
);
CREATE TABLE public.measure_record (
    id integer NOT NULL,
    task_id integer NOT NULL,
    pick_id integer,
    trace text NOT NULL,
    trace_hash text NOT NULL,
    module_hash text,
    run_secs json,
    latency double precision,
    error_kind text,
    error_text text,
    verified boolean NOT NULL,
    max_error double precision,
    confirmed_secs json,
    worker text NOT NULL,
    created timestamp with time zone NOT NULL,
    CONSTRAINT ck_measure_record_error_kind_known CHECK ((error_kind = ANY (ARRAY['build_error'::text, 'build_timeout'::text, 'run_error'::text, 'run_timeout'::text, 'wrong_result'::text, 'worker_lost'::text]))),
    CONSTRAINT ck_measure_record_latency_of_samples CHECK (((run_secs IS NULL) = (latency IS NULL))),
    CONSTRAINT ck_measure_record_timed_or_failed CHECK (((run_secs IS NULL) <> (error_kind IS NULL))),
    CONSTRAINT ck_measure_record_verified_has_samples CHECK (((NOT verified) OR (run_secs IS NOT NULL)))
);
CREATE SEQUENCE public.measure_record_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.measure_record_id_seq OWNED BY public.measure_record.id;
CREATE TABLE public.network (
    id integer NOT NULL,
    sha256 text NOT NULL,
    name text NOT NULL,
    inputs json NOT NULL,
    created timestamp with time zone NOT NULL
);
CREATE SEQUENCE public.network_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.network_id_seq OWNED BY public.network.id;
CREATE TABLE public.network_task (
    network_id integer NOT NULL,
    task_id integer NOT NULL,
    weight integer NOT NULL,
    "position" integer NOT NULL,
    CONSTRAINT ck_network_task_weight_positive CHECK ((weight >= 1))
);
CREATE TABLE public.pick (
    id integer NOT NULL,
    job_id integer NOT NULL,
    sequence integer NOT NULL,
    task_id integer NOT NULL,
    n_trials integer NOT NULL,
    terms json NOT NULL,
    done boolean NOT NULL,
    created timestamp with time zone NOT NULL,
    secs double precision,
    n_measured integer DEFAULT 0 NOT NULL,
    n_failed integer DEFAULT 0 NOT NULL,
    n_timeouts integer DEFAULT 0 NOT NULL,
    best_secs double precision,
    run_secs double precision DEFAULT '0'::double precision NOT NULL,
    total_secs double precision,
    job_trials integer
);
CREATE SEQUENCE public.pick_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.pick_id_seq OWNED BY public.pick.id;
CREATE TABLE public.target (
    id integer NOT NULL,
    spec text NOT NULL,
    device json NOT NULL,
    fingerprint text NOT NULL
);
CREATE SEQUENCE public.target_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.target_id_seq OWNED BY public.target.id;
CREATE TABLE public.task (
    id integer NOT NULL,
    workload_id integer NOT NULL,
    target_id integer NOT NULL
);
CREATE SEQUENCE public.task_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.task_id_seq OWNED BY public.task.id;
CREATE TABLE public.worker (
    id integer NOT NULL,
    name text NOT NULL,
    host text NOT NULL,
    pid integer NOT NULL,
    role text NOT NULL,
    device json NOT NULL,
    job_id integer,
    activity text NOT NULL,
    busy_secs double precision NOT NULL,
    busy_share double precision NOT NULL,
    started timestamp with time zone NOT NULL,
    heartbeat timestamp with time zone NOT NULL,
    stopped timestamp with time zone
);
CREATE SEQUENCE public.worker_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.worker_id_seq OWNED BY public.worker.id;
CREATE TABLE public.workload (
    id integer NOT NULL,
    hash text NOT NULL,
    engine text NOT NULL,
    ir bytea NOT NULL,
    flop double precision NOT NULL,
    name text NOT NULL
);
CREATE SEQUENCE public.workload_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.workload_id_seq OWNED BY public.workload.id;
ALTER TABLE ONLY public.api_token ALTER COLUMN id SET DEFAULT nextval('public.api_token_id_seq'::regclass);
ALTER TABLE ONLY public.audit_event ALTER COLUMN id SET DEFAULT nextval('public.audit_event_id_seq'::regclass);
ALTER TABLE ONLY public.build ALTER COLUMN id SET DEFAULT nextval('public.build_id_seq'::regclass);
ALTER TABLE ONLY public.job ALTER COLUMN id SET DEFAULT nextval('public.job_id_seq'::regclass);
ALTER TABLE ONLY public.library ALTER COLUMN id SET DEFAULT nextval('public.library_id_seq'::regclass);
ALTER TABLE ONLY public.measure_record ALTER COLUMN id SET DEFAULT nextval('public.measure_record_id_seq'::regclass);
ALTER TABLE ONLY public.network ALTER COLUMN id SET DEFAULT nextval('public.network_id_seq'::regclass);
ALTER TABLE ONLY public.pick ALTER COLUMN id SET DEFAULT nextval('public.pick_id_seq'::regclass);
ALTER TABLE ONLY public.target ALTER COLUMN id SET DEFAULT nextval('public.target_id_seq'::regclass);
ALTER TABLE ONLY public.task ALTER COLUMN id SET DEFAULT nextval('public.task_id_seq'::regclass);
ALTER TABLE ONLY public.worker ALTER COLUMN id SET DEFAULT nextval('public.worker_id_seq'::regclass);
ALTER TABLE ONLY public.workload ALTER COLUMN id SET DEFAULT nextval('public.workload_id_seq'::regclass);
INSERT INTO public.alembic_version VALUES ('0003');
INSERT INTO public.api_token VALUES (1, 'ci', '0000000000000000000000000000000000000000000000000000000000000000', '["read", "submit"]', '2026-01-01 00:00:00+00', NULL, NULL, NULL);
INSERT INTO public.audit_event VALUES (1, '2026-01-01 00:00:00+00', 'ci', '127.0.0.1', 'tune', 2, '{"zoo": "mlp"}');
INSERT INTO public.best_record VALUES (1, 3, 1.2, true);
INSERT INTO public.build VALUES (1, 1, 0, false, 'queued', NULL, NULL, NULL, NULL, NULL, '2026-01-01 00:00:00+00', '2026-01-01 00:00:00+00');
INSERT INTO public.cost_model VALUES (1, 'xgboost', 1, '\x806d6f64656c', '2026-01-01 00:00:00+00');
INSERT INTO public.event VALUES (1, 1, 'pick', '{"pick": 1, "task_id": 1, "n_trials": 2, "reason": "warm_up"}', '2026-01-01 00:00:00+00');
INSERT INTO public.event VALUES (1, 2, 'pick', '{"pick": 2, "task_id": 1, "n_trials": 2, "reason": "gradient"}', '2026-01-01 00:00:00+00');
INSERT INTO public.event VALUES (1, 3, 'pick', '{"pick": 3, "task_id": 2, "n_trials": 2, "reason": "warm_up"}', '2026-01-01 00:00:00+00');
INSERT INTO public.event VALUES (1, 4, 'trial', '{"pick": 1, "task_id": 1, "record": 1, "latency_secs": 2.0, "error_kind": null, "best": true}', '2026-01-01 00:00:00+00');
INSERT INTO public.event VALUES (1, 5, 'trial', '{"pick": 1, "task_id": 1, "record": 2, "latency_secs": null, "error_kind": "run_timeout", "best": false}', '2026-01-01 00:00:00+00');
INSERT INTO public.event VALUES (1, 6, 'trial', '{"pick": 2, "task_id": 1, "record": 3, "latency_secs": 1.0, "error_kind": null, "best": true}', '2026-01-01 00:00:00+00');
INSERT INTO public.event VALUES (1, 7, 'state', '{"state": "paused", "message": "stopped by hand"}', '2026-01-01 00:00:00+00');
INSERT INTO public.event VALUES (2, 1, 'state', '{"state": "queued", "message": null}', '2026-01-01 00:00:00+00');
INSERT INTO public.event VALUES (3, 1, 'state', '{"state": "queued", "message": null}', '2026-01-01 00:00:00+00');
INSERT INTO public.event VALUES (1, 8, 'build', '{"build": 1, "state": "queued", "message": null}', '2026-01-01 00:00:00+00');
INSERT INTO public.extraction VALUES (1, 1, '["1 operator is not tuned"]', 5, '{}');
INSERT INTO public.idempotency_key VALUES ('ci', 'key-1', 'fingerprint', 2, '2026-01-01 00:00:00+00');
INSERT INTO public.imported_round VALUES (1, 1, 0, 0, 3, 3);
INSERT INTO public.job VALUES (2, NULL, NULL, 'f1', 7, 8, NULL, 0, 2, 'queued', '{}', NULL, '2026-01-01 00:00:00+00', '2026-01-01 00:00:00+00', NULL, 0, 'never loaded', '{"zoo": "mlp"}', 's1', false, 1);
INSERT INTO public.job VALUES (3, 1, 1, 'f1', 0, 8, 60, 0, 0, 'queued', '{"number": 3}', NULL, '2026-01-01 00:00:00+00', '2026-01-01 00:00:00+00', NULL, 0, 'the same network', '{"zoo": "net"}', 's2', false, 1);
INSERT INTO public.job VALUES (1, 1, 1, 'f1', 0, 64, NULL, 9.5, 0, 'paused', '{"number": 3}', 'stopped by hand', '2026-01-01 00:00:00+00', '2026-01-01 00:00:00+00', NULL, 0, NULL, NULL, '', false, 8);
INSERT INTO public.job_failure VALUES (1, 'run_timeout', 1, 2);
INSERT INTO public.lease VALUES ('coordinator', 'host:1', 1, '2026-01-01 00:00:00+00');
INSERT INTO public.library VALUES (1, 'k', 1, 1, '{"format": 1}', '/data/k', '2026-01-01 00:00:00+00');
INSERT INTO public.measure_feature VALUES (1, '\x0001');
INSERT INTO public.measure_record VALUES (2, 1, 1, '["b"]', 'b', NULL, NULL, NULL, 'run_timeout', '10 s are over', false, NULL, NULL, 'w1', '2026-01-01 00:00:00+00');
INSERT INTO public.measure_record VALUES (4, 1, NULL, '["d"]', 'd', NULL, '[3.0]', 3, NULL, NULL, true, 1e-06, NULL, 'other machine', '2026-01-01 00:00:00+00');
INSERT INTO public.measure_record VALUES (1, 1, 1, '["a"]', 'a', 'm1', '[2.0, 2.5, 1.5]', 2, NULL, NULL, true, 1e-06, '[1.9, 2.1, 2.0]', 'w1', '2026-01-01 00:00:00+00');
INSERT INTO public.measure_record VALUES (3, 1, 2, '["c"]', 'c', NULL, '[1.0]', 1, NULL, NULL, true, 1e-06, '[1.2, 1.1, 1.3]', 'w1', '2026-01-01 00:00:00+00');
INSERT INTO public.network VALUES (1, 'n0', 'net n0', '{"x": {"shape": [1, 3, 224, 224], "dtype": "float32"}}', '2026-01-01 00:00:00+00');
INSERT INTO public.network_task VALUES (1, 1, 2, 0);
INSERT INTO public.network_task VALUES (1, 2, 1, 1);
INSERT INTO public.pick VALUES (2, 1, 2, 1, 2, '{"reason": "gradient", "gain": 0.5}', false, '2026-01-01 00:00:00+00', NULL, 1, 0, 0, 1, 1, NULL, NULL);
INSERT INTO public.pick VALUES (1, 1, 1, 1, 2, '{"reason": "warm_up", "gain": null}', true, '2026-01-01 00:00:00+00', 12.5, 2, 1, 1, 2, 2, NULL, NULL);
INSERT INTO public.pick VALUES (3, 1, 3, 2, 2, '{"reason": "warm_up", "failed": "nothing to propose"}', true, '2026-01-01 00:00:00+00', NULL, 0, 0, 0, NULL, 0, NULL, NULL);
INSERT INTO public.target VALUES (1, '{"kind":"llvm"}', '{"name": "Test CPU", "n_cores": 2, "versions": {"tvm": "0.27"}}', '4936cb82d414cda9f644d56436a2e6d1db7b3687ae490f92971e7283b509be12');
INSERT INTO public.task VALUES (1, 1, 1);
INSERT INTO public.task VALUES (2, 2, 1);
INSERT INTO public.worker VALUES (1, 'host:1', 'host', 1, 'coordinator', '{}', 1, 'measuring', 0, 0, '2026-01-01 00:00:00+00', '2026-01-01 00:00:00+00', NULL);
INSERT INTO public.workload VALUES (1, 'w0', 'relax', '\x0069722d7730', 2000000000, 'dense_w0');
INSERT INTO public.workload VALUES (2, 'w1', 'relax', '\x0069722d7731', 2000000000, 'dense_w1');
SELECT pg_catalog.setval('public.api_token_id_seq', 1, true);
SELECT pg_catalog.setval('public.audit_event_id_seq', 1, true);
SELECT pg_catalog.setval('public.build_id_seq', 1, true);
SELECT pg_catalog.setval('public.job_id_seq', 3, true);
SELECT pg_catalog.setval('public.library_id_seq', 1, true);
SELECT pg_catalog.setval('public.measure_record_id_seq', 4, true);
SELECT pg_catalog.setval('public.network_id_seq', 1, true);
SELECT pg_catalog.setval('public.pick_id_seq', 3, true);
SELECT pg_catalog.setval('public.target_id_seq', 1, true);
SELECT pg_catalog.setval('public.task_id_seq', 2, true);
SELECT pg_catalog.setval('public.worker_id_seq', 1, true);
SELECT pg_catalog.setval('public.workload_id_seq', 2, true);
ALTER TABLE ONLY public.alembic_version
    ADD CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num);
ALTER TABLE ONLY public.api_token
    ADD CONSTRAINT pk_api_token PRIMARY KEY (id);
ALTER TABLE ONLY public.audit_event
    ADD CONSTRAINT pk_audit_event PRIMARY KEY (id);
ALTER TABLE ONLY public.best_record
    ADD CONSTRAINT pk_best_record PRIMARY KEY (task_id);
ALTER TABLE ONLY public.build
    ADD CONSTRAINT pk_build PRIMARY KEY (id);
ALTER TABLE ONLY public.cost_model
    ADD CONSTRAINT pk_cost_model PRIMARY KEY (target_id, kind);
ALTER TABLE ONLY public.event
    ADD CONSTRAINT pk_event PRIMARY KEY (job_id, sequence);
ALTER TABLE ONLY public.extraction
    ADD CONSTRAINT pk_extraction PRIMARY KEY (network_id, target_id);
ALTER TABLE ONLY public.idempotency_key
    ADD CONSTRAINT pk_idempotency_key PRIMARY KEY (subject, key);
ALTER TABLE ONLY public.imported_round
    ADD CONSTRAINT pk_imported_round PRIMARY KEY (task_id);
ALTER TABLE ONLY public.job
    ADD CONSTRAINT pk_job PRIMARY KEY (id);
ALTER TABLE ONLY public.job_failure
    ADD CONSTRAINT pk_job_failure PRIMARY KEY (job_id, error_kind);
ALTER TABLE ONLY public.job_status
    ADD CONSTRAINT pk_job_status PRIMARY KEY (job_id);
ALTER TABLE ONLY public.lease
    ADD CONSTRAINT pk_lease PRIMARY KEY (name);
ALTER TABLE ONLY public.library
    ADD CONSTRAINT pk_library PRIMARY KEY (id);
ALTER TABLE ONLY public.measure_feature
    ADD CONSTRAINT pk_measure_feature PRIMARY KEY (record_id);
ALTER TABLE ONLY public.measure_record
    ADD CONSTRAINT pk_measure_record PRIMARY KEY (id);
ALTER TABLE ONLY public.network
    ADD CONSTRAINT pk_network PRIMARY KEY (id);
ALTER TABLE ONLY public.network_task
    ADD CONSTRAINT pk_network_task PRIMARY KEY (network_id, task_id);
ALTER TABLE ONLY public.pick
    ADD CONSTRAINT pk_pick PRIMARY KEY (id);
ALTER TABLE ONLY public.target
    ADD CONSTRAINT pk_target PRIMARY KEY (id);
ALTER TABLE ONLY public.task
    ADD CONSTRAINT pk_task PRIMARY KEY (id);
ALTER TABLE ONLY public.worker
    ADD CONSTRAINT pk_worker PRIMARY KEY (id);
ALTER TABLE ONLY public.workload
    ADD CONSTRAINT pk_workload PRIMARY KEY (id);
ALTER TABLE ONLY public.api_token
    ADD CONSTRAINT uq_api_token_digest UNIQUE (digest);
ALTER TABLE ONLY public.api_token
    ADD CONSTRAINT uq_api_token_name UNIQUE (name);
ALTER TABLE ONLY public.best_record
    ADD CONSTRAINT uq_best_record_record_id UNIQUE (record_id);
ALTER TABLE ONLY public.job
    ADD CONSTRAINT uq_job_network_id_target_id_objective_seed_submission UNIQUE (network_id, target_id, objective, seed, submission);
ALTER TABLE ONLY public.library
    ADD CONSTRAINT uq_library_key UNIQUE (key);
ALTER TABLE ONLY public.measure_record
    ADD CONSTRAINT uq_measure_record_task_id_trace_hash UNIQUE (task_id, trace_hash);
ALTER TABLE ONLY public.network
    ADD CONSTRAINT uq_network_sha256 UNIQUE (sha256);
ALTER TABLE ONLY public.pick
    ADD CONSTRAINT uq_pick_job_id_sequence UNIQUE (job_id, sequence);
ALTER TABLE ONLY public.target
    ADD CONSTRAINT uq_target_fingerprint UNIQUE (fingerprint);
ALTER TABLE ONLY public.task
    ADD CONSTRAINT uq_task_workload_id_target_id UNIQUE (workload_id, target_id);
ALTER TABLE ONLY public.worker
    ADD CONSTRAINT uq_worker_name UNIQUE (name);
ALTER TABLE ONLY public.workload
    ADD CONSTRAINT uq_workload_hash_engine UNIQUE (hash, engine);
CREATE INDEX ix_audit_event_created ON public.audit_event USING btree (created);
CREATE INDEX ix_audit_event_job_id ON public.audit_event USING btree (job_id);
CREATE INDEX ix_build_job_id_id ON public.build USING btree (job_id, id);
CREATE INDEX ix_build_state ON public.build USING btree (state);
CREATE INDEX ix_job_state ON public.job USING btree (state);
CREATE INDEX ix_measure_record_pick_id ON public.measure_record USING btree (pick_id);
CREATE INDEX ix_measure_record_task_id_latency ON public.measure_record USING btree (task_id, latency);
CREATE INDEX ix_network_task_task_id ON public.network_task USING btree (task_id);
CREATE INDEX ix_pick_task_id ON public.pick USING btree (task_id);
CREATE INDEX ix_task_target_id ON public.task USING btree (target_id);
CREATE UNIQUE INDEX uq_job_submission ON public.job USING btree (submission) WHERE (submission <> ''::text);
ALTER TABLE ONLY public.audit_event
    ADD CONSTRAINT fk_audit_event_job_id_job FOREIGN KEY (job_id) REFERENCES public.job(id);
ALTER TABLE ONLY public.best_record
    ADD CONSTRAINT fk_best_record_record_id FOREIGN KEY (record_id) REFERENCES public.measure_record(id);
ALTER TABLE ONLY public.best_record
    ADD CONSTRAINT fk_best_record_task_id FOREIGN KEY (task_id) REFERENCES public.task(id);
ALTER TABLE ONLY public.build
    ADD CONSTRAINT fk_build_job_id_job FOREIGN KEY (job_id) REFERENCES public.job(id);
ALTER TABLE ONLY public.cost_model
    ADD CONSTRAINT fk_cost_model_target_id FOREIGN KEY (target_id) REFERENCES public.target(id);
ALTER TABLE ONLY public.event
    ADD CONSTRAINT fk_event_job_id_job FOREIGN KEY (job_id) REFERENCES public.job(id);
ALTER TABLE ONLY public.extraction
    ADD CONSTRAINT fk_extraction_network_id FOREIGN KEY (network_id) REFERENCES public.network(id);
ALTER TABLE ONLY public.extraction
    ADD CONSTRAINT fk_extraction_target_id FOREIGN KEY (target_id) REFERENCES public.target(id);
ALTER TABLE ONLY public.idempotency_key
    ADD CONSTRAINT fk_idempotency_key_job_id_job FOREIGN KEY (job_id) REFERENCES public.job(id);
ALTER TABLE ONLY public.imported_round
    ADD CONSTRAINT fk_imported_round_task_id_task FOREIGN KEY (task_id) REFERENCES public.task(id);
ALTER TABLE ONLY public.job_failure
    ADD CONSTRAINT fk_job_failure_job_id_job FOREIGN KEY (job_id) REFERENCES public.job(id);
ALTER TABLE ONLY public.job_failure
    ADD CONSTRAINT fk_job_failure_record_id_measure_record FOREIGN KEY (record_id) REFERENCES public.measure_record(id);
ALTER TABLE ONLY public.job
    ADD CONSTRAINT fk_job_network_id FOREIGN KEY (network_id) REFERENCES public.network(id);
ALTER TABLE ONLY public.job_status
    ADD CONSTRAINT fk_job_status_job_id_job FOREIGN KEY (job_id) REFERENCES public.job(id);
ALTER TABLE ONLY public.job_status
    ADD CONSTRAINT fk_job_status_task_id_task FOREIGN KEY (task_id) REFERENCES public.task(id);
ALTER TABLE ONLY public.job
    ADD CONSTRAINT fk_job_target_id FOREIGN KEY (target_id) REFERENCES public.target(id);
ALTER TABLE ONLY public.library
    ADD CONSTRAINT fk_library_network_id FOREIGN KEY (network_id) REFERENCES public.network(id);
ALTER TABLE ONLY public.library
    ADD CONSTRAINT fk_library_target_id FOREIGN KEY (target_id) REFERENCES public.target(id);
ALTER TABLE ONLY public.measure_feature
    ADD CONSTRAINT fk_measure_feature_record_id FOREIGN KEY (record_id) REFERENCES public.measure_record(id);
ALTER TABLE ONLY public.measure_record
    ADD CONSTRAINT fk_measure_record_pick_id FOREIGN KEY (pick_id) REFERENCES public.pick(id);
ALTER TABLE ONLY public.measure_record
    ADD CONSTRAINT fk_measure_record_task_id FOREIGN KEY (task_id) REFERENCES public.task(id);
ALTER TABLE ONLY public.network_task
    ADD CONSTRAINT fk_network_task_network_id FOREIGN KEY (network_id) REFERENCES public.network(id);
ALTER TABLE ONLY public.network_task
    ADD CONSTRAINT fk_network_task_task_id FOREIGN KEY (task_id) REFERENCES public.task(id);
ALTER TABLE ONLY public.pick
    ADD CONSTRAINT fk_pick_job_id FOREIGN KEY (job_id) REFERENCES public.job(id);
ALTER TABLE ONLY public.pick
    ADD CONSTRAINT fk_pick_task_id FOREIGN KEY (task_id) REFERENCES public.task(id);
ALTER TABLE ONLY public.task
    ADD CONSTRAINT fk_task_target_id FOREIGN KEY (target_id) REFERENCES public.target(id);
ALTER TABLE ONLY public.task
    ADD CONSTRAINT fk_task_workload_id FOREIGN KEY (workload_id) REFERENCES public.workload(id);
ALTER TABLE ONLY public.worker
    ADD CONSTRAINT fk_worker_job_id_job FOREIGN KEY (job_id) REFERENCES public.job(id);
