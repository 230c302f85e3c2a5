"""Repairs of holes, each with the smallest change that undoes it and the tests that must notice."""

from dataclasses import dataclass

HARNESS = "tests/invariants/test_non_interference.py"
GATE = "custom/grandrounds/privacy/gate"
SERVER = "custom/grandrounds/federation/server"
SUMS = "custom/grandrounds/privacy/secure_sums"
ON_ATTEMPTS, ON_ROSTERS, ON_MASKS, ON_CHANGES = (
    f"tests/unit/privacy/{name}.py"
    for name in ("secure_sums/test_attempt", "secure_sums/test_roster", "secure_sums/test_masks", "gate/test_sums")
)
ON_GATES, ON_RIDGE, ON_SERVERS = (
    f"tests/federation/sums/{name}.py" for name in ("test_masking_gate", "test_secure_ridge", "test_hostile_server")
)
ON_LABELS = "tests/federation/test_label_choice.py"
ON_PARTIES, ON_NUMBERS = (f"tests/unit/privacy/secure_sums/test_{name}.py" for name in ("party", "summands"))


@dataclass(frozen=True)
class Revert:
    """A repair that is undone.

    Attributes:
        attack: what it stops, in a few words.
        place: the file.
        repaired: text that is there once.
        undone: what is put in its place.
        tests: files, or tests of a file, of which at least one must fail.
    """

    attack: str
    place: str
    repaired: str
    undone: str
    tests: tuple[str, ...]


OF_OTHERS = (
    Revert(
        "a failed validate or test is one bit about one image",
        f"{GATE}/filters.py",
        "        if facts.task in SCORES or (facts.task == JOIN and gate.relies_on_noise):\n",
        "        if not facts:\n",
        (HARNESS,),
    ),
    Revert(
        "a prediction that is not finite ends the scores",
        "custom/grandrounds/federation/site/scoring.py",
        "torch.from_numpy(total_probabilities(problem.kind, labels, one)) for one",
        "torch.from_numpy(one) for one",
        ("tests/unit/federation/site/test_scoring.py",),
    ),
    Revert(
        "a validate with weights of 3e38 under record-level privacy",
        f"{GATE}/gate.py",
        "if self._counted_update() is not None and not largest <= MAX_WEIGHT:",
        "if facts.task == TRAIN and self._counted_update() is not None and not largest <= MAX_WEIGHT:",
        ("tests/unit/privacy/gate/test_questions.py",),
    ),
    Revert(
        "576 questions by bisection",
        f"{GATE}/gate.py",
        "if facts.task in SCORES and self._scored(facts) > self.policy.scored_answers:",
        "if self._scored(facts) < 0:",
        ("tests/unit/privacy/gate/test_questions.py",),
    ),
    Revert(
        "validate, test and join after the budget is spent",
        f"{GATE}/gate.py",
        "if facts.task != TRAIN and facts.terms.models:",
        "if facts.task == JOIN and facts.task == TRAIN:",
        ("tests/unit/privacy/gate/test_questions.py",),
    ),
    Revert(
        "a training that fails where updates leave with noise",
        f"{GATE}/gate.py",
        "return facts.task == TRAIN and rule is not None and isinstance(rule.treatment, ClipAndNoise)",
        "return False",
        (HARNESS,),
    ),
    Revert(
        "the server asks for another precision than the policy demands",
        f"{GATE}/gate.py",
        "            self.policy.demands.require_task(facts.terms)\n",
        "",
        ("tests/unit/privacy/gate/test_questions.py",),
    ),
    Revert(
        "one of two hospitals sends an update of 1e30, or claims 1e9 samples",
        f"{SERVER}/robust.py",
        "MIN_VALUES = 3\n",
        "MIN_VALUES = 1\n",
        ("tests/unit/federation/server/test_robust.py",),
    ),
    Revert(
        "a median of zeros bounds nothing",
        f"{SERVER}/robust.py",
        "return multiple * statistics.median(own) if own else None",
        "return None",
        ("tests/unit/federation/server/test_robust.py",),
    ),
    Revert(
        "a table leaves without its small counts, which a total gives back",
        f"{GATE}/treatments.py",
        "        return has_small_counts(_table(tensors), self.minimum)\n",
        "        return False\n",
        ("tests/unit/privacy/gate/test_counts.py",),
    ),
    Revert(
        "numbers of images leave for some classes of a part",
        f"{GATE}/gate.py",
        "if shown[table] != classes",
        "if not shown",
        ("tests/unit/privacy/gate/test_counts.py",),
    ),
    Revert(
        "an installed plug-in replaces the gate",
        "custom/grandrounds/plugins.py",
        "if plugin.distribution in {pin.name for pin in pins}]",
        "if pins is not None]",
        ("tests/unit/deployment/kit/test_distributions.py",),
    ),
    Revert(
        "a copy of an archive is a new budget",
        "custom/grandrounds/privacy/inventory.py",
        "return image_identity(reader.encoded(name))",
        'return {f"{id(reader)}/{name}"}',
        ("tests/unit/privacy/test_inventory.py",),
    ),
    Revert(
        "a name with dollar signs ends the report",
        "custom/grandrounds/plotting.py",
        "                text.set_parse_math(False)\n",
        "                text.set_parse_math(True)\n",
        ("tests/unit/reporting/test_page.py",),
    ),
    Revert(
        "a class name is a formula in a table",
        "custom/grandrounds/csv_files.py",
        "_FORMULA.match(text) and not is_number",
        "text is _FORMULA and not is_number",
        ("tests/unit/test_csv_files.py",),
    ),
    Revert(
        "decoded images are readable by other users",
        "custom/grandrounds/deployment/kit/service.py",
        "stream, kit.folder, umask=PRIVATE)",
        "stream, kit.folder)",
        ("tests/unit/deployment/test_containers.py",),
    ),
    Revert(
        "the systemd unit restricts nothing",
        "provisioning/systemd/grandrounds@.service",
        "CapabilityBoundingSet=\n",
        "",
        ("tests/unit/deployment/test_containers.py",),
    ),
    Revert(
        "a fault after the first image is named",
        f"{GATE}/filters.py",
        "        self.reads = True\n",
        "        self.reads = False\n",
        ("tests/federation/privacy/test_faults_before_images.py",),
    ),
    Revert(
        "a file of a job's archive states too small a size",
        "custom/grandrounds/federation/job_files.py",
        "return stream.read(entry.file_size)",
        "return stream.read()",
        ("tests/unit/deployment/kit/test_admission.py::test_no_more_is_unpacked_of_a_file_than_it_states",),
    ),
    Revert(
        "the folder of a running job is deleted",
        f"{GATE}/filters.py",
        '"nothing: it is gone" if in_kit(fl_ctx) else ',
        "",
        ("tests/federation/privacy/test_chosen_model.py",),
    ),
    Revert(
        "models of whole numbers, after the budget is spent",
        f"{GATE}/filters.py",
        "any(payload.parts.values())",
        "any(floating_entries(part) for part in payload.parts.values())",
        ("tests/federation/privacy/test_chosen_model.py::test_weights_in_whole_numbers_are_weights",),
    ),
    Revert(
        "counts of images to label in a job without them",
        "custom/grandrounds/methods/ridge/executor.py",
        "        require_label_question(payload, classes)\n",
        "",
        (f"{ON_LABELS}::test_a_server_that_asks_for_counts_in_a_job_without_them_gets_none",),
    ),
    Revert(
        "counts of images to label by other labels, or by another head",
        "custom/grandrounds/methods/ridge/executor.py",
        "if {first, self._run_here.store.first_question(LABELS, question)} != {question}:\n",
        "if False:\n",
        (f"{ON_LABELS}::test_a_second_question_by_other_labels_is_not_answered",),
    ),
)

OF_SUMS = (
    Revert(
        "a site is lost in one attempt, there in the next",
        f"{SUMS}/roster.py",
        "join.certificate, join.signature, self.nonces[name]]",
        "join.certificate, join.signature]",
        (f"{ON_ATTEMPTS}::test_a_site_lost_in_one_attempt_and_there_in_the_next_stays_closed",),
    ),
    Revert(
        "a nonce comes twice",
        f"{SUMS}/attempt.py",
        '        notes.once(f"nonce {self.nonce.hex()}", run)\n',
        "",
        (f"{ON_ATTEMPTS}::test_a_nonce_that_was_used_before_ends_the_attempt",),
    ),
    Revert(
        "the server replays a roster of an earlier attempt",
        f"{SUMS}/attempt.py",
        "        if roster.nonces.get(self._site) != self.nonce:\n",
        "        if not roster.nonces:\n",
        (f"{ON_ATTEMPTS}::test_a_roster_of_an_earlier_attempt_is_refused",),
    ),
    Revert(
        "a phase is asked twice, or left out",
        f"{SUMS}/attempt.py",
        "        if self._phase != phase:\n",
        "        if phase < 0:\n",
        (
            f"{ON_ATTEMPTS}::test_each_phase_is_answered_once",
            f"{ON_ATTEMPTS}::test_no_phase_can_be_left_out",
        ),
    ),
    Revert(
        "differing contributors to two sites",
        f"{SUMS}/attempt.py",
        "if roster.signed(name, chosen, signature)]",
        "if signature]",
        (
            f"{ON_ATTEMPTS}::test_different_lists_to_two_sites_open_nothing",
            f"{ON_ATTEMPTS}::test_without_the_signatures_of_t_sites_nothing_is_opened",
        ),
    ),
    Revert(
        "fewer than t signatures",
        f"{SUMS}/attempt.py",
        "        if len(valid) < needed:\n",
        "        if not valid:\n",
        (f"{ON_ATTEMPTS}::test_without_the_signatures_of_t_sites_nothing_is_opened",),
    ),
    Revert(
        "both kinds of share for one site",
        f"{SUMS}/attempt.py",
        "        lost = set(roster.sites) - set(chosen)\n",
        "        lost = set(self._partner_names())\n",
        (f"{ON_ATTEMPTS}::test_no_site_gives_both_kinds_of_share_for_one",),
    ),
    Revert(
        "the shares of a site that is called lost",
        f"{SUMS}/attempt.py",
        "{name: self._shares[name] for name in chosen}",
        "dict(self._shares)",
        (f"{ON_ATTEMPTS}::test_an_input_that_is_called_lost_and_kept_stays_closed",),
    ),
    Revert(
        "one or two contributors",
        f"{SUMS}/attempt.py",
        "        if len(chosen) < least:\n",
        "        if not least:\n",
        (f"{ON_ATTEMPTS}::test_a_list_of_contributors_that_would_show_too_much_is_not_signed",),
    ),
    Revert(
        "a list of contributors without the site, or with a stranger",
        f"{SUMS}/attempt.py",
        " or not set(chosen) <= set(self._roster.sites) or self._site not in chosen:",
        ":",
        (f"{ON_ATTEMPTS}::test_a_list_of_contributors_that_would_show_too_much_is_not_signed",),
    ),
    Revert(
        "fewer sites than a policy asks for",
        f"{SUMS}/attempt.py",
        "return max(self.needed(sites), self.minimum_sites, 3)",
        "return max(self.needed(sites), 3)",
        (f"{ON_ATTEMPTS}::test_the_policy_may_ask_for_more_sites",),
    ),
    Revert(
        "a roster of the server's own names, certified by the project's authority",
        f"{SUMS}/roster.py",
        "if self.pins is not None and self.pins.get(site) != key_digest(certificate):",
        "if self.pins is not None and site not in self.pins:",
        (f"{ON_ATTEMPTS}::test_pinned_a_roster_of_minted_hospitals_is_refused",),
    ),
    Revert(
        "a swapped key of the site itself",
        f"{SUMS}/attempt.py",
        "if own is None or (own.channel, own.masks, own.signing) != self._keys.public:",
        "if own is None:",
        (f"{ON_ATTEMPTS}::test_a_roster_with_a_swapped_key_of_the_site_is_refused",),
    ),
    Revert(
        "a swapped key of a partner",
        f"{SUMS}/roster.py",
        "            key.verify(join.signature, join.statement, SIGNATURE_PADDING, SHA256())\n",
        "            pass\n",
        (f"{ON_ATTEMPTS}::test_a_roster_with_a_swapped_key_of_a_partner_is_refused",),
    ),
    Revert(
        "one hospital under two names",
        f"{SUMS}/roster.py",
        "                if key in holders:\n",
        "                if not key:\n",
        (
            f"{ON_ROSTERS}::test_one_key_of_two_sites_is_refused",
            f"{ON_ROSTERS}::test_one_certificate_key_of_two_sites_is_refused",
        ),
    ),
    Revert(
        "a certificate of another root",
        f"{SUMS}/roster.py",
        "            certificate.verify_directly_issued_by(self.root)\n",
        "",
        (f"{ON_ROSTERS}::test_who_is_no_hospital_of_the_project_is_refused",),
    ),
    Revert(
        "a person's certificate",
        f"{SUMS}/roster.py",
        "if any(role not in SITE_ROLES for role in roles) or len(roles) > 1:",
        "if len(roles) > 1:",
        (f"{ON_ATTEMPTS}::test_a_partner_that_has_the_certificate_of_a_person_is_refused",),
    ),
    Revert(
        "the certificate of a server or an authority",
        f"{SUMS}/roster.py",
        "if _hosts(certificate) - {site} or _is_authority(certificate):",
        "if not site:",
        (f"{ON_ROSTERS}::test_who_is_no_hospital_of_the_project_is_refused",),
    ),
    Revert(
        "an old join, of another run or job",
        f"{SUMS}/roster.py",
        "        if (join.run, join.job) != (run, job):\n",
        "        if not join.run:\n",
        (f"{ON_ATTEMPTS}::test_a_statement_of_an_earlier_run_is_refused",),
    ),
    Revert(
        "a text that FLARE signs for a server, as a statement",
        f"{SUMS}/roster.py",
        "return STATEMENT_PREFIX + framed(*(text.encode() for text in texts), self.channel, self.masks, self.signing)",
        "return framed(*(text.encode() for text in texts), self.channel, self.masks, self.signing)",
        (f"{ON_ROSTERS}::test_what_flare_signs_for_a_server_is_no_statement",),
    ),
    Revert(
        "a replayed run name, and a quantity over other sites",
        f"{SUMS}/attempt.py",
        '        self._notes.same(f"contributors of {self._roster.quantity} in {self._run}", ", ".join(chosen))\n',
        "",
        (f"{ON_ATTEMPTS}::test_a_quantity_is_not_opened_again_over_other_sites",),
    ),
    Revert(
        "a restored state folder; near models, and counts after targets, over other rosters",
        f"{SUMS}/attempt.py",
        "            if left & batch not in (set(), batch):\n",
        "            if not batch:\n",
        (
            f"{ON_ATTEMPTS}::test_other_sums_of_a_data_set_are_over_the_same_sites_in_every_run",
            f"{ON_ATTEMPTS}::test_a_site_whose_state_was_restored_opens_nothing_over_other_sites",
        ),
    ),
    Revert(
        "a second batch of few hospitals",
        f"{SUMS}/attempt.py",
        "        if number > 1 and len(left) < self._rules.batch:\n",
        "        if number < 1:\n",
        (f"{ON_ATTEMPTS}::test_a_second_batch_joins_the_sums_of_a_data_set_and_a_smaller_one_does_not",),
    ),
    Revert(
        "one site's model is another than that of all others",
        f"{SUMS}/attempt.py",
        "        context = framed(self._roster.digest, self._subject)\n",
        "        context = framed(self._roster.digest)\n",
        (f"{ON_ATTEMPTS}::test_sites_that_were_asked_different_things_open_nothing",),
    ),
    Revert(
        "an input without the share of each partner",
        f"{SUMS}/attempt.py",
        "        if boxes.keys() != set(self._partner_names()):\n",
        "        if not boxes:\n",
        (f"{ON_ATTEMPTS}::test_an_input_needs_the_share_of_every_partner",),
    ),
    Revert(
        "masks that are the same for two sums of one number",
        f"{SUMS}/masks.py",
        "return with_pair_masks(add(words, stream(own_seed, words)), seeds, site)",
        "return with_pair_masks(words, seeds, site)",
        (
            f"{ON_MASKS}::test_masks_follow_the_equation_of_the_paper",
            f"{ON_MASKS}::test_without_one_own_seed_nothing_is_opened",
        ),
    ),
    Revert(
        "a site adds more than its bound",
        f"{SUMS}/numbers.py",
        "if signed.size and (signed.max() > limit or signed.min() < -limit):",
        "if not limit:",
        (f"{ON_ATTEMPTS}::test_a_site_that_sends_more_than_the_bound_is_noticed",),
    ),
    Revert(
        "a data set that has changed by one patient",
        f"{GATE}/sums.py",
        "        if changed and patients < minimum:\n",
        "        if minimum < 0:\n",
        (ON_CHANGES,),
    ),
    Revert(
        "the gate does not ask whether a data set has changed",
        f"{GATE}/gate.py",
        "            if minima:\n",
        "            if not minima:\n",
        (f"{ON_RIDGE}::test_a_data_set_that_has_changed_by_one_patient_gives_no_sum_of_features",),
    ),
    Revert(
        "a hundred sums of scores and one",
        "provisioning/overlays/sums.json",
        '          "scored_answers": 100,\n',
        "",
        (
            "tests/unit/privacy/gate/test_questions.py::test_the_shipped_policy_of_sums_scores_a_hundred_models_of_a_job",
        ),
    ),
    Revert(
        "an executor that knows nothing of masks",
        f"{GATE}/gate.py",
        "        if only:\n",
        "        if not only and known is None:\n",
        (f"{ON_GATES}::test_what_a_policy_masks_does_not_leave_alone",),
    ),
    Revert(
        "a job filter behind the gate",
        f"{GATE}/sums.py",
        '        if self.client.get("task_result_filters"):\n',
        "        if not self.client:\n",
        (f"{ON_GATES}::test_a_job_that_filters_answers_adds_nothing",),
    ),
    Revert(
        "the server sweeps the bound to which ridge's sums are clipped",
        f"{GATE}/sums.py",
        "asked.subject.hex() if kind is ReleaseKind.SUFFICIENT_STATISTICS else ",
        "",
        (f"{ON_SERVERS}::test_a_second_question_about_sums_of_features_is_not_answered",),
    ),
    Revert(
        "another run in the same job, with another question",
        f"{GATE}/sums.py",
        "return self.job if self.is_kit else run",
        "return run",
        (f"{ON_CHANGES}::test_a_job_asks_for_a_sum_in_one_way_whatever_runs_the_server_names",),
    ),
    Revert(
        "the server sweeps the norm to which features are clipped",
        "custom/grandrounds/methods/ridge/executor.py",
        "            require_stated(fl_ctx, payload.values, {LARGEST_NORM: DEFAULT_NORM, LABEL_BUDGET: 0})\n",
        "            require_stated(fl_ctx, payload.values, {LABEL_BUDGET: 0})\n",
        (f"{ON_SERVERS}::test_a_norm_that_is_not_the_jobs_gives_no_sum",),
    ),
    Revert(
        "losses of any number of heads",
        "custom/grandrounds/methods/ridge/executor.py",
        "        require_few_heads(heads, centre, offsets, len(context.problem.classes))\n",
        "",
        (f"{ON_SERVERS}::test_losses_are_of_a_few_whole_heads",),
    ),
    Revert(
        "the server sweeps the patients from which a row of a relation matrix counts",
        f"{SUMS}/summands.py",
        '_exact(tensors["support"]) >= 0\n',
        '_exact(tensors["support"]) >= terms.values.get("relation_support", 0)\n',
        (f"{ON_NUMBERS}::test_a_server_chooses_no_rows_of_relation_matrices_by_their_patients",),
    ),
    Revert(
        "updates of labelled sites with two weights",
        "custom/grandrounds/methods/fedirm/executor.py",
        "            require_stated(fl_ctx, payload.values, {FACTOR: 1.0})\n",
        "            pass\n",
        (f"{ON_SERVERS}::test_a_weight_of_labelled_sites_that_is_not_the_jobs_gives_no_update",),
    ),
    Revert(
        "updates with weights and without, by a server and one of three hospitals",
        f"{GATE}/sums.py",
        'else f"weighted {asked.task.weighted}"\n',
        'else ""\n',
        (f"{ON_CHANGES}::test_a_job_asks_for_a_sum_in_one_way_whatever_runs_the_server_names",),
    ),
    Revert(
        "two trainings of one model, one without a hospital",
        f"{GATE}/gate.py",
        "fixed = self.policy.sums.fixed_updates or any(",
        "fixed = any(",
        (f"{ON_SERVERS}::test_where_a_policy_fixes_updates_they_are_over_the_same_hospitals",),
    ),
    Revert(
        "the same data set under another name, over other hospitals",
        f"{GATE}/sums.py",
        "first = first if changed else _first_name(content, before)",
        "first = first or before.content",
        (f"{ON_CHANGES}::test_the_same_data_set_under_another_name_counts_as_one",),
    ),
    Revert(
        "the same data set under another name, with one patient more",
        f"{GATE}/sums.py",
        "        if _data_of_sums(before) not in content.notes:\n",
        "        if before.dataset.name != dataset or _data_of_sums(before) not in content.notes:\n",
        (f"{ON_CHANGES}::test_the_same_data_set_under_another_name_counts_as_one",),
    ),
    Revert(
        "a hospital signs two lists for the server",
        f"{SUMS}/shares.py",
        "    return (sites + colluding) // 2 + 1\n",
        "    return sites // 2 + 1\n",
        (f"{ON_ATTEMPTS}::test_a_hospital_that_signs_two_lists_opens_nothing_with_the_server",),
    ),
    Revert(
        "a hospital's key is another's in another spelling",
        f"{SUMS}/masks.py",
        '"mask", context, *sorted((site, other)))',
        '"mask", context)',
        (f"{ON_ATTEMPTS}::test_a_hospital_that_repeats_a_key_in_another_form_shares_no_seed_of_it",),
    ),
    Revert(
        "an attempt that was opened is asked again",
        f"{SUMS}/party.py",
        "            self._attempts.pop(attempt.nonce, None)\n",
        "",
        (f"{ON_PARTIES}::test_an_attempt_that_was_opened_is_not_asked_again",),
    ),
    Revert(
        "the next roster has other keys, or a nonce of this attempt",
        f"{SUMS}/party.py",
        "self._attempt_of(task.following).shares(task.following)\n",
        "{}\n",
        (f"{ON_PARTIES}::test_the_next_roster_is_checked_like_the_first",),
    ),
    Revert(
        "the quantity of an open attempt is another",
        f"{SUMS}/attempt.py",
        'self._roster_digest in (b"", roster.digest)',
        "self._roster_digest is not None",
        (f"{ON_PARTIES}::test_a_roster_whose_quantity_has_changed_is_of_no_attempt",),
    ),
)
"""Attacks of secure sums."""

REVERTS = (*OF_OTHERS, *OF_SUMS)
