CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL,
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0001');
CREATE TABLE best_record (
	task_id INTEGER NOT NULL,
	record_id INTEGER NOT NULL,
	latency DOUBLE NOT NULL,
	confirmed BOOLEAN NOT NULL,
	CONSTRAINT pk_best_record PRIMARY KEY (task_id),
	CONSTRAINT fk_best_record_record_id FOREIGN KEY(record_id) REFERENCES measure_record (id),
	CONSTRAINT fk_best_record_task_id FOREIGN KEY(task_id) REFERENCES task (id),
	CONSTRAINT uq_best_record_record_id UNIQUE (record_id)
);
INSERT INTO "best_record" VALUES(1,3,1.2,1);
CREATE TABLE cost_model (
	target_id INTEGER NOT NULL,
	kind TEXT NOT NULL,
	n_records INTEGER NOT NULL,
	blob BLOB NOT NULL,
	created DATETIME NOT NULL,
	CONSTRAINT pk_cost_model PRIMARY KEY (target_id, kind),
	CONSTRAINT fk_cost_model_target_id FOREIGN KEY(target_id) REFERENCES target (id)
);
INSERT INTO "cost_model" VALUES(1,'xgboost',1,X'806D6F64656C','2026-01-01 00:00:00');
CREATE TABLE extraction (
	network_id INTEGER NOT NULL,
	target_id INTEGER NOT NULL,
	notes JSON NOT NULL,
	n_kernel_calls INTEGER NOT NULL,
	extra JSON NOT NULL,
	CONSTRAINT pk_extraction PRIMARY KEY (network_id, target_id),
	CONSTRAINT fk_extraction_network_id FOREIGN KEY(network_id) REFERENCES network (id),
	CONSTRAINT fk_extraction_target_id FOREIGN KEY(target_id) REFERENCES target (id)
);
INSERT INTO "extraction" VALUES(1,1,'["1 operator is not tuned"]',5,'{}');
CREATE TABLE job (
	id INTEGER NOT NULL,
	network_id INTEGER NOT NULL,
	target_id INTEGER NOT NULL,
	objective TEXT NOT NULL,
	seed BIGINT NOT NULL,
	budget_trials INTEGER,
	budget_secs DOUBLE,
	spent_secs DOUBLE NOT NULL,
	priority INTEGER NOT NULL,
	state TEXT NOT NULL,
	settings JSON NOT NULL,
	message TEXT,
	created DATETIME NOT NULL,
	updated DATETIME NOT NULL,
	CONSTRAINT pk_job PRIMARY KEY (id),
	CONSTRAINT ck_job_state_known CHECK (state IN ('queued', 'running', 'paused', 'done', 'failed', 'cancelled')),
	CONSTRAINT fk_job_network_id FOREIGN KEY(network_id) REFERENCES network (id),
	CONSTRAINT fk_job_target_id FOREIGN KEY(target_id) REFERENCES target (id),
	CONSTRAINT uq_job_network_id_target_id_objective_seed UNIQUE (network_id, target_id, objective, seed)
);
INSERT INTO "job" VALUES(1,1,1,'f1',0,64,NULL,9.5,0,'paused','{"number": 3}','stopped by hand','2026-01-01 00:00:00','2026-01-01 00:00:00');
CREATE TABLE library (
	id INTEGER NOT NULL,
	"key" TEXT NOT NULL,
	network_id INTEGER,
	target_id INTEGER NOT NULL,
	manifest JSON NOT NULL,
	path TEXT NOT NULL,
	created DATETIME NOT NULL,
	CONSTRAINT pk_library PRIMARY KEY (id),
	CONSTRAINT fk_library_network_id FOREIGN KEY(network_id) REFERENCES network (id),
	CONSTRAINT fk_library_target_id FOREIGN KEY(target_id) REFERENCES target (id),
	CONSTRAINT uq_library_key UNIQUE ("key")
);
INSERT INTO "library" VALUES(1,'k',1,1,'{"format": 1}','/data/k','2026-01-01 00:00:00');
CREATE TABLE measure_feature (
	record_id INTEGER NOT NULL,
	features BLOB NOT NULL,
	CONSTRAINT pk_measure_feature PRIMARY KEY (record_id),
	CONSTRAINT fk_measure_feature_record_id FOREIGN KEY(record_id) REFERENCES measure_record (id)
);
INSERT INTO "measure_feature" VALUES(1,X'0001');
CREATE TABLE measure_record (
	id INTEGER NOT NULL,
	task_id INTEGER NOT NULL,
	pick_id INTEGER,
	trace TEXT NOT NULL,
	trace_hash TEXT NOT NULL,
	module_hash TEXT,
	run_secs JSON,
	latency DOUBLE,
	error_kind TEXT,
	error_text TEXT,
	verified BOOLEAN NOT NULL,
	max_error DOUBLE,
	confirmed_secs JSON,
	worker TEXT NOT NULL,
	created DATETIME NOT NULL,
	CONSTRAINT pk_measure_record PRIMARY KEY (id),
	CONSTRAINT ck_measure_record_error_kind_known CHECK (error_kind IN ('build_error', 'build_timeout', 'run_error', 'run_timeout', 'wrong_result', 'worker_lost')),
	CONSTRAINT ck_measure_record_timed_or_failed CHECK ((run_secs IS NULL) <> (error_kind IS NULL)),
	CONSTRAINT ck_measure_record_latency_of_samples CHECK ((run_secs IS NULL) = (latency IS NULL)),
	CONSTRAINT ck_measure_record_verified_has_samples CHECK (NOT verified OR run_secs IS NOT NULL),
	CONSTRAINT fk_measure_record_pick_id FOREIGN KEY(pick_id) REFERENCES pick (id),
	CONSTRAINT fk_measure_record_task_id FOREIGN KEY(task_id) REFERENCES task (id),
	CONSTRAINT uq_measure_record_task_id_trace_hash UNIQUE (task_id, trace_hash)
);
INSERT INTO "measure_record" VALUES(1,1,1,'["a"]','a','m1','[2.0, 2.5, 1.5]',2.0,NULL,NULL,1,1.0e-06,'[1.9, 2.1, 2.0]','w1','2026-01-01 00:00:00');
INSERT INTO "measure_record" VALUES(2,1,1,'["b"]','b',NULL,NULL,NULL,'run_timeout','10 s are over',0,NULL,NULL,'w1','2026-01-01 00:00:00');
INSERT INTO "measure_record" VALUES(3,1,2,'["c"]','c',NULL,'[1.0]',1.0,NULL,NULL,1,1.0e-06,'[1.2, 1.1, 1.3]','w1','2026-01-01 00:00:00');
INSERT INTO "measure_record" VALUES(4,1,NULL,'["d"]','d',NULL,'[3.0]',3.0,NULL,NULL,1,1.0e-06,NULL,'other machine','2026-01-01 00:00:00');
CREATE TABLE network (
	id INTEGER NOT NULL,
	sha256 TEXT NOT NULL,
	name TEXT NOT NULL,
	inputs JSON NOT NULL,
	created DATETIME NOT NULL,
	CONSTRAINT pk_network PRIMARY KEY (id),
	CONSTRAINT uq_network_sha256 UNIQUE (sha256)
);
INSERT INTO "network" VALUES(1,'n0','net n0','{"x": {"shape": [1, 3, 224, 224], "dtype": "float32"}}','2026-01-01 00:00:00');
CREATE TABLE network_task (
	network_id INTEGER NOT NULL,
	task_id INTEGER NOT NULL,
	weight INTEGER NOT NULL,
	position INTEGER NOT NULL,
	CONSTRAINT pk_network_task PRIMARY KEY (network_id, task_id),
	CONSTRAINT ck_network_task_weight_positive CHECK (weight >= 1),
	CONSTRAINT fk_network_task_network_id FOREIGN KEY(network_id) REFERENCES network (id),
	CONSTRAINT fk_network_task_task_id FOREIGN KEY(task_id) REFERENCES task (id)
);
INSERT INTO "network_task" VALUES(1,1,2,0);
INSERT INTO "network_task" VALUES(1,2,1,1);
CREATE TABLE pick (
	id INTEGER NOT NULL,
	job_id INTEGER NOT NULL,
	sequence INTEGER NOT NULL,
	task_id INTEGER NOT NULL,
	n_trials INTEGER NOT NULL,
	terms JSON NOT NULL,
	done BOOLEAN NOT NULL,
	created DATETIME NOT NULL,
	CONSTRAINT pk_pick PRIMARY KEY (id),
	CONSTRAINT fk_pick_job_id FOREIGN KEY(job_id) REFERENCES job (id),
	CONSTRAINT fk_pick_task_id FOREIGN KEY(task_id) REFERENCES task (id),
	CONSTRAINT uq_pick_job_id_sequence UNIQUE (job_id, sequence)
);
INSERT INTO "pick" VALUES(1,1,1,1,2,'{"reason": "warm_up", "gain": null}',1,'2026-01-01 00:00:00');
INSERT INTO "pick" VALUES(2,1,2,1,2,'{"reason": "gradient", "gain": 0.5}',0,'2026-01-01 00:00:00');
INSERT INTO "pick" VALUES(3,1,3,2,2,'{"reason": "warm_up", "failed": "nothing to propose"}',1,'2026-01-01 00:00:00');
CREATE TABLE target (
	id INTEGER NOT NULL,
	spec TEXT NOT NULL,
	device JSON NOT NULL,
	fingerprint TEXT NOT NULL,
	CONSTRAINT pk_target PRIMARY KEY (id),
	CONSTRAINT uq_target_fingerprint UNIQUE (fingerprint)
);
INSERT INTO "target" VALUES(1,'{"kind":"llvm"}','{"name": "Test CPU", "n_cores": 2, "versions": {"tvm": "0.27"}}','4936cb82d414cda9f644d56436a2e6d1db7b3687ae490f92971e7283b509be12');
CREATE TABLE task (
	id INTEGER NOT NULL,
	workload_id INTEGER NOT NULL,
	target_id INTEGER NOT NULL,
	CONSTRAINT pk_task PRIMARY KEY (id),
	CONSTRAINT fk_task_target_id FOREIGN KEY(target_id) REFERENCES target (id),
	CONSTRAINT fk_task_workload_id FOREIGN KEY(workload_id) REFERENCES workload (id),
	CONSTRAINT uq_task_workload_id_target_id UNIQUE (workload_id, target_id)
);
INSERT INTO "task" VALUES(1,1,1);
INSERT INTO "task" VALUES(2,2,1);
CREATE TABLE workload (
	id INTEGER NOT NULL,
	hash TEXT NOT NULL,
	engine TEXT NOT NULL,
	ir BLOB NOT NULL,
	flop DOUBLE NOT NULL,
	name TEXT NOT NULL,
	CONSTRAINT pk_workload PRIMARY KEY (id),
	CONSTRAINT uq_workload_hash_engine UNIQUE (hash, engine)
);
INSERT INTO "workload" VALUES(1,'w0','relax',X'0069722D7730',2000000000.0,'dense_w0');
INSERT INTO "workload" VALUES(2,'w1','relax',X'0069722D7731',2000000000.0,'dense_w1');
CREATE INDEX ix_task_target_id ON task (target_id);
CREATE INDEX ix_network_task_task_id ON network_task (task_id);
CREATE INDEX ix_pick_task_id ON pick (task_id);
CREATE INDEX ix_measure_record_pick_id ON measure_record (pick_id);
CREATE INDEX ix_measure_record_task_id_latency ON measure_record (task_id, latency);
