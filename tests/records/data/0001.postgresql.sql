CREATE TABLE public.alembic_version (
    version_num character varying(32) NOT NULL
);
CREATE TABLE public.best_record (
    task_id integer NOT NULL,
    record_id integer NOT NULL,
    latency double precision NOT NULL,
    confirmed boolean NOT NULL
);
CREATE TABLE public.cost_model (
    target_id integer NOT NULL,
    kind text NOT NULL,
    n_records integer NOT NULL,
    blob bytea NOT NULL,
    created timestamp with time zone NOT NULL
);
CREATE TABLE public.extraction (
    network_id integer NOT NULL,
    target_id integer NOT NULL,
    notes json NOT NULL,
    n_kernel_calls integer NOT NULL,
    extra json NOT NULL
);
CREATE TABLE public.job (
    id integer NOT NULL,
    network_id integer NOT NULL,
    target_id integer NOT NULL,
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
    CONSTRAINT ck_job_state_known CHECK ((state = ANY (ARRAY['queued'::text, 'running'::text, 'paused'::text, 'done'::text, 'failed'::text, 'cancelled'::text])))
);
CREATE SEQUENCE public.job_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.job_id_seq OWNED BY public.job.id;
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
    created timestamp with time zone NOT NULL
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
ALTER TABLE ONLY public.job ALTER COLUMN id SET DEFAULT nextval('public.job_id_seq'::regclass);
ALTER TABLE ONLY public.library ALTER COLUMN id SET DEFAULT nextval('public.library_id_seq'::regclass);
ALTER TABLE ONLY public.measure_record ALTER COLUMN id SET DEFAULT nextval('public.measure_record_id_seq'::regclass);
ALTER TABLE ONLY public.network ALTER COLUMN id SET DEFAULT nextval('public.network_id_seq'::regclass);
ALTER TABLE ONLY public.pick ALTER COLUMN id SET DEFAULT nextval('public.pick_id_seq'::regclass);
ALTER TABLE ONLY public.target ALTER COLUMN id SET DEFAULT nextval('public.target_id_seq'::regclass);
ALTER TABLE ONLY public.task ALTER COLUMN id SET DEFAULT nextval('public.task_id_seq'::regclass);
ALTER TABLE ONLY public.workload ALTER COLUMN id SET DEFAULT nextval('public.workload_id_seq'::regclass);
INSERT INTO public.alembic_version VALUES ('0001');
INSERT INTO public.best_record VALUES (1, 3, 1.2, true);
INSERT INTO public.cost_model VALUES (1, 'xgboost', 1, '\x806d6f64656c', '2026-01-01 00:00:00+00');
INSERT INTO public.extraction VALUES (1, 1, '["1 operator is not tuned"]', 5, '{}');
INSERT INTO public.job VALUES (1, 1, 1, 'f1', 0, 64, NULL, 9.5, 0, 'paused', '{"number": 3}', 'stopped by hand', '2026-01-01 00:00:00+00', '2026-01-01 00:00:00+00');
INSERT INTO public.library VALUES (1, 'k', 1, 1, '{"format": 1}', '/data/k', '2026-01-01 00:00:00+00');
INSERT INTO public.measure_feature VALUES (1, '\x0001');
INSERT INTO public.measure_record VALUES (2, 1, 1, '["b"]', 'b', NULL, NULL, NULL, 'run_timeout', '10 s are over', false, NULL, NULL, 'w1', '2026-01-01 00:00:00+00');
INSERT INTO public.measure_record VALUES (4, 1, NULL, '["d"]', 'd', NULL, '[3.0]', 3, NULL, NULL, true, 1e-06, NULL, 'other machine', '2026-01-01 00:00:00+00');
INSERT INTO public.measure_record VALUES (1, 1, 1, '["a"]', 'a', 'm1', '[2.0, 2.5, 1.5]', 2, NULL, NULL, true, 1e-06, '[1.9, 2.1, 2.0]', 'w1', '2026-01-01 00:00:00+00');
INSERT INTO public.measure_record VALUES (3, 1, 2, '["c"]', 'c', NULL, '[1.0]', 1, NULL, NULL, true, 1e-06, '[1.2, 1.1, 1.3]', 'w1', '2026-01-01 00:00:00+00');
INSERT INTO public.network VALUES (1, 'n0', 'net n0', '{"x": {"shape": [1, 3, 224, 224], "dtype": "float32"}}', '2026-01-01 00:00:00+00');
INSERT INTO public.network_task VALUES (1, 1, 2, 0);
INSERT INTO public.network_task VALUES (1, 2, 1, 1);
INSERT INTO public.pick VALUES (2, 1, 2, 1, 2, '{"reason": "gradient", "gain": 0.5}', false, '2026-01-01 00:00:00+00');
INSERT INTO public.pick VALUES (1, 1, 1, 1, 2, '{"reason": "warm_up", "gain": null}', true, '2026-01-01 00:00:00+00');
INSERT INTO public.pick VALUES (3, 1, 3, 2, 2, '{"reason": "warm_up", "failed": "nothing to propose"}', true, '2026-01-01 00:00:00+00');
INSERT INTO public.target VALUES (1, '{"kind":"llvm"}', '{"name": "Test CPU", "n_cores": 2, "versions": {"tvm": "0.27"}}', '4936cb82d414cda9f644d56436a2e6d1db7b3687ae490f92971e7283b509be12');
INSERT INTO public.task VALUES (1, 1, 1);
INSERT INTO public.task VALUES (2, 2, 1);
INSERT INTO public.workload VALUES (1, 'w0', 'relax', '\x0069722d7730', 2000000000, 'dense_w0');
INSERT INTO public.workload VALUES (2, 'w1', 'relax', '\x0069722d7731', 2000000000, 'dense_w1');
SELECT pg_catalog.setval('public.job_id_seq', 1, true);
SELECT pg_catalog.setval('public.library_id_seq', 1, true);
SELECT pg_catalog.setval('public.measure_record_id_seq', 4, true);
SELECT pg_catalog.setval('public.network_id_seq', 1, true);
SELECT pg_catalog.setval('public.pick_id_seq', 3, true);
SELECT pg_catalog.setval('public.target_id_seq', 1, true);
SELECT pg_catalog.setval('public.task_id_seq', 2, true);
SELECT pg_catalog.setval('public.workload_id_seq', 2, true);
ALTER TABLE ONLY public.alembic_version
    ADD CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num);
ALTER TABLE ONLY public.best_record
    ADD CONSTRAINT pk_best_record PRIMARY KEY (task_id);
ALTER TABLE ONLY public.cost_model
    ADD CONSTRAINT pk_cost_model PRIMARY KEY (target_id, kind);
ALTER TABLE ONLY public.extraction
    ADD CONSTRAINT pk_extraction PRIMARY KEY (network_id, target_id);
ALTER TABLE ONLY public.job
    ADD CONSTRAINT pk_job PRIMARY KEY (id);
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
ALTER TABLE ONLY public.workload
    ADD CONSTRAINT pk_workload PRIMARY KEY (id);
ALTER TABLE ONLY public.best_record
    ADD CONSTRAINT uq_best_record_record_id UNIQUE (record_id);
ALTER TABLE ONLY public.job
    ADD CONSTRAINT uq_job_network_id_target_id_objective_seed UNIQUE (network_id, target_id, objective, seed);
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
ALTER TABLE ONLY public.workload
    ADD CONSTRAINT uq_workload_hash_engine UNIQUE (hash, engine);
CREATE INDEX ix_measure_record_pick_id ON public.measure_record USING btree (pick_id);
CREATE INDEX ix_measure_record_task_id_latency ON public.measure_record USING btree (task_id, latency);
CREATE INDEX ix_network_task_task_id ON public.network_task USING btree (task_id);
CREATE INDEX ix_pick_task_id ON public.pick USING btree (task_id);
CREATE INDEX ix_task_target_id ON public.task USING btree (target_id);
ALTER TABLE ONLY public.best_record
    ADD CONSTRAINT fk_best_record_record_id FOREIGN KEY (record_id) REFERENCES public.measure_record(id);
ALTER TABLE ONLY public.best_record
    ADD CONSTRAINT fk_best_record_task_id FOREIGN KEY (task_id) REFERENCES public.task(id);
ALTER TABLE ONLY public.cost_model
    ADD CONSTRAINT fk_cost_model_target_id FOREIGN KEY (target_id) REFERENCES public.target(id);
ALTER TABLE ONLY public.extraction
    ADD CONSTRAINT fk_extraction_network_id FOREIGN KEY (network_id) REFERENCES public.network(id);
ALTER TABLE ONLY public.extraction
    ADD CONSTRAINT fk_extraction_target_id FOREIGN KEY (target_id) REFERENCES public.target(id);
ALTER TABLE ONLY public.job
    ADD CONSTRAINT fk_job_network_id FOREIGN KEY (network_id) REFERENCES public.network(id);
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
