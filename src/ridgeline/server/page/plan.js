"use strict";
// The planner page. It asks /plan/choices, /plan/sheet and /plan/ranking and shows what they say; no formula and no plot is made here.

const $ = (id) => document.getElementById(id);
const ask = $("ask");
const wanted = { sheet: 150, ranking: 350 }; // milliseconds of rest before a question is sent
const running = {}; // what -> AbortController of the question under way
const timers = {};
const kinds = ["users", "batch", "rate"];
const fields = [...ask.elements].filter((e) => e.name && e.name !== "kind");
let choices = null;
let preset = "";
let providers = []; // [name, input, cached, output] as typed
let shown = null; // the last sheet
let pinned = null; // the sheet that is compared with

// --- the query string is the state ---------------------------------------------------------------------------------------------

function kind() { return ask.elements.kind.value; }

function query() {
  const found = new URLSearchParams();
  if (preset) found.set("preset", preset);
  for (const field of fields) {
    const value = field.type === "checkbox" ? (field.checked ? field.value : "") : field.value.trim();
    const other = kinds.includes(field.name) ? field.name : field.name === "cached" ? "rate" : "";
    if (value && (!other || other === kind())) found.set(field.name, value);
  }
  if (providers.length) found.set("providers", providers.map(([name, ...prices]) => `${name}=${prices.join("/")}`).join(";"));
  if ($("per_day").value.trim()) found.set("per_day", $("per_day").value.trim());
  return found;
}

function restore() {
  const given = new URLSearchParams(location.search);
  preset = given.get("preset") ?? "";
  for (const field of fields) {
    const value = given.get(field.name) ?? "";
    if (field.type === "checkbox") field.checked = value === field.value;
    else if (field.tagName === "SELECT" && value && ![...field.options].some((o) => o.value === value)) field.add(new Option(value, value));
    if (field.type !== "checkbox") field.value = value;
  }
  ask.elements.kind.value = kinds.find((k) => given.get(k)) ?? "users";
  providers = (given.get("providers") ?? "").split(";").filter(Boolean).map((row) => {
    const [name, prices] = row.split("=");
    return [name, ...(prices ?? "").split("/")];
  });
  $("per_day").value = given.get("per_day") ?? "";
  if (!given.get("model")) ask.elements.model.value = choices.first_model;
  if (!given.get("device")) ask.elements.device.value = given.get("workshop") ? "" : choices.first_device;
  if (["weights_bytes", "overhead", "memory", "bandwidth", "math", "kv_heads", "pp", "ideal", "ignore_window", "workshop"].some((k) => given.get(k))) $("terms").open = true;
  settle();
}

// --- asking --------------------------------------------------------------------------------------------------------------------

function headers() {
  const key = $("key").value;
  return key ? { authorization: "Bearer " + key } : {};
}

async function get(path, signal) {
  const reply = await fetch(path, { headers: headers(), signal });
  const found = await reply.json().catch(() => null);
  if (!reply.ok || found === null) {
    const error = new Error(found?.error?.message ?? `the server answers with HTTP ${reply.status}`);
    error.param = found?.error?.param ?? "";
    error.status = reply.status;
    throw error;
  }
  return found;
}

function later(what, work) {
  clearTimeout(timers[what]);
  running[what]?.abort();
  timers[what] = setTimeout(async () => {
    const own = running[what] = new AbortController();
    try {
      await work(own.signal);
    } catch (error) {
      if (error.name !== "AbortError" && running[what] === own) complain(error, what);
    }
  }, wanted[what]);
}

function changed() {
  const asked = query();
  history.replaceState(null, "", "?" + asked);
  settle();
  const width = String(Math.floor($("answer").clientWidth));
  later("sheet", async (signal) => {
    asked.set("width", width);
    show(await get("plan/sheet?" + asked, signal));
  });
  if ($("rank").open) rank();
}

function rank() {
  const asked = query();
  for (const name of ["device", "bandwidth", "memory", "math", "providers", "per_day"]) asked.delete(name);
  asked.set("width", String(Math.floor($("answer").clientWidth)));
  $("rank_state").textContent = "Judging every device ...";
  later("ranking", async (signal) => show_ranking(await get("plan/ranking?" + asked, signal)));
}

function complain(error, what) {
  const offline = error instanceof TypeError;
  const nameless = error.status === 401 && !$("key").value;
  const words = offline ? "The server does not answer. Is it still running?" : nameless ? "This server wants an API key: type it on this page." : error.message;
  if (error.status === 401) {
    $("key_field").hidden = false;
    $("key").focus();
  }
  if (what === "ranking") {
    $("rank_state").textContent = words;
    for (const id of ["fig_ranking", "passing", "dropped"]) $(id).replaceChildren();
    $("h_dropped").hidden = true;
    return;
  }
  $("fault").textContent = words;
  $("fault").hidden = false;
  $("brief").textContent = words;
  for (const part of document.querySelectorAll("main > section, #verdict, #notes")) part.classList.add("stale");
  mark(error.param);
}

function mark(param) {
  const name = (param ?? "").replace(/^--/, "").replace(/-bytes$/, (m) => (param === "--overhead-bytes" ? "" : m)).replaceAll("-", "_").toLowerCase();
  for (const field of fields) {
    const wrong = name !== "" && field.name === name;
    field.setAttribute("aria-invalid", String(wrong));
    if (wrong) { field.setAttribute("aria-describedby", "fault"); if ($("terms").contains(field)) $("terms").open = true; }
    else field.removeAttribute("aria-describedby");
  }
}

// --- showing -------------------------------------------------------------------------------------------------------------------

function element(tag, text, kind) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function row(cells, tag = "td") {
  const made = document.createElement("tr");
  for (const cell of cells) made.append(cell instanceof Node ? cell : element(tag, cell[0] ?? cell, cell[1]));
  return made;
}

function show(found) {
  shown = found;
  $("fault").hidden = true;
  for (const part of document.querySelectorAll(".stale")) part.classList.remove("stale");
  mark("");
  $("verdict").textContent = found.verdict;
  $("brief").textContent = found.verdict;
  $("verdict").className = found.document.fits && !found.document.slo.reason ? "" : "no";
  $("notes").replaceChildren(...found.document.notes.map((words) => element("p", words)));
  show_numbers(found);
  show_what_if(found.document.what_if ?? []);
  $("explain").querySelector("tbody").replaceChildren(...found.explain.map((line) => row([[line.what], [line.formula], [line.numbers], [line.value]])));
  for (const [name, drawn] of Object.entries(found.figures)) $("fig_" + name).innerHTML = drawn; // escaped where it was drawn
  show_terms(found.in_force);
  show_preset(found.preset);
  show_providers(found.providers);
  document.title = `${found.document.model} on ${found.document.device} - Ridgeline planner`;
}

function sourced(words) {
  if (words.length <= 120) return element("span", words, "source");
  const made = element("details", undefined, "source");
  made.append(element("summary", words.slice(0, words.lastIndexOf(" ", 60)) + " ..."), element("span", words));
  return made;
}

function show_numbers(found) {
  $("numbers").tHead.replaceChildren(...(pinned ? [row([[""], ["now"], ["pinned: " + pinned.document.model + " on " + pinned.document.device], [""]], "th")] : []));
  $("numbers").tBodies[0].replaceChildren(...found.lines.map((line, i) => {
    const name = element("th", line.name);
    name.scope = "row";
    const source = element("td");
    source.append(element("span", line.kind, "kind " + line.kind), sourced(line.label));
    const same = (l) => l.key === line.key && l.name.replace(/[\d,]+/g, "") === line.name.replace(/[\d,]+/g, "");
    const before = pinned ? [element("td", pinned.lines.find(same)?.value ?? "-", "was")] : [];
    return row([name, element("td", line.value), ...before, source]);
  }));
}

function show_what_if(rows) {
  $("what_if_part").hidden = rows.length === 0;
  const head = row([["change"], ["device seconds", "n"], ["$/M output", "n"], ["saved", "n"]], "th");
  $("what_if").replaceChildren(head, ...rows.map((w) => row([[w.change], [w.device_s.toFixed(4), "n"], [money(w.usd_per_mtok), "n"], [`${Math.round(w.saved * 100)}%`, "n"]])));
}

function amount(bytes) {
  return bytes >= 1e12 ? `${+(bytes / 1e12).toPrecision(4)}TB` : bytes >= 1e9 ? `${+(bytes / 1e9).toPrecision(4)}GB` : `${+(bytes / 1e6).toPrecision(4)}MB`;
}

function show_terms(terms) {
  const said = {
    context: terms.context, output: terms.output, memory: amount(terms.memory), bandwidth: amount(terms.bandwidth) + "/s", overhead: amount(terms.overhead),
    weights_bytes: amount(terms.weights_bytes), kv_heads: terms.kv_heads,
    price: terms.price === null ? "unknown" : `${terms.price} (table; to ${terms.price_high})`,
    itl: terms.itl === null ? "none, e.g. 30ms" : `${terms.itl * 1000}ms`,
  };
  for (const [name, words] of Object.entries(said)) ask.elements[name].placeholder = words;
  ask.elements.price.title = terms.price_sources ? `${terms.price_dates}: ${terms.price_sources}` : "no price in the table";
  ask.elements.math.options[0].textContent = `${terms.math} (default)`;
  ask.elements.weight_dtype.options[0].textContent = terms.weight_dtype === "as stored" ? "as stored" : `${terms.weight_dtype} (default)`;
  $("fewer").hidden = terms.fewer_kv_heads === null || ask.elements.kv_heads.value !== "";
  $("fewer").value = String(terms.fewer_kv_heads ?? "");
  $("fewer").textContent = `Try ${terms.fewer_kv_heads} KV heads`;
  slide("context", terms.context);
  for (const name of ["users", "batch"]) if (!ask.elements[name].value) slide(name, terms.batch);
}

function pin(found) {
  pinned = found;
  $("pin").setAttribute("aria-pressed", String(pinned !== null));
  $("pin").textContent = pinned ? "Unpin" : "Pin for comparison";
  if (shown) show_numbers(shown);
}

function show_preset(found) {
  for (const button of $("presets").children) button.setAttribute("aria-pressed", String(button.value === preset));
  $("triangle").hidden = !found;
  if (found) $("triangle").textContent = `Pinned: ${found.pins}. Chased: ${found.chases}. Solved: ${found.solves}.`;
}

function money(value) { return value === null ? "-" : "$" + (value >= 0.01 ? value.toFixed(3) : value.toPrecision(3)); }

function show_providers(rows) {
  const head = row([["who"], ["input $/M", "n"], ["cached $/M", "n"], ["output $/M", "n"], ["$ a request", "n"], ["$ a month", "n"], ["times our own", "n"], ["label"], [""]], "th");
  const body = rows.map((r, i) => {
    const drop = element("td");
    if (i > 0) {
      const button = element("button", "Remove");
      button.type = "button";
      button.setAttribute("aria-label", "Remove " + r.name);
      button.addEventListener("click", () => { providers.splice(i - 1, 1); changed(); });
      drop.append(button);
    }
    const times = r.times_own === null ? "-" : r.times_own.toFixed(2) + "x";
    return row([[r.name], [money(r.input), "n"], [money(r.cached), "n"], [money(r.output), "n"], [money(r.usd_per_request), "n"], [r.usd_per_month ? "$" + r.usd_per_month.toLocaleString("en", { maximumFractionDigits: 0 }) : "-", "n"], [times, "n"], [r.label, "source"], drop]);
  });
  $("providers").replaceChildren(head, ...body);
}

function show_table() {
  const peaks = choices.math;
  const heads = [["device"], ["GB", "n"], ["GB/s", "n"], ...peaks.map((m) => [m, "n"]), ["ridge", "n"], ["$/h", "n"], ["price from"], ["numbers from"]];
  const rows = ask.elements.workshop.checked ? choices.workshop : choices.table;
  $("table").replaceChildren(row(heads, "th"), ...rows.map((d) => {
    const name = element("td");
    const button = element("button", d.name, "plain");
    button.type = "button";
    button.addEventListener("click", () => { ask.elements.device.value = d.name; changed(); scrollTo({ top: 0 }); });
    name.append(button);
    const price = d.usd_low === null ? "" : d.usd_high === d.usd_low ? d.usd_low.toFixed(2) : `${d.usd_low.toFixed(2)} - ${d.usd_high.toFixed(2)}`;
    const number = (v) => [v === null || v === undefined ? "" : v.toLocaleString("en", { maximumFractionDigits: 1 }), "n"];
    const from = (words) => { const cell = element("td"); cell.append(sourced(words)); return cell; };
    return row([name, number(d.memory_gb), number(d.bandwidth_gb_s), ...peaks.map((m) => number(d.tflops[m])), number(d.ridge), [price, "n"], from(d.price_source), from(d.source)]);
  }));
}

function show_ranking(found) {
  const passing = found.options.filter((o) => o.passes), dropped = found.options.filter((o) => !o.passes);
  const goal = [found.slo.itl_ms && `ITL within ${found.slo.itl_ms} ms`, found.slo.ttft_ms && `TTFT within ${found.slo.ttft_ms} ms`].filter(Boolean).join(", ");
  $("rank_state").textContent = `${passing.length} of ${found.options.length} devices serve ${found.model} at ${found.context} tokens${goal ? " with " + goal : ", without a promise"}. ${found.labels.step_time_ms ?? ""}`;
  $("fig_ranking").innerHTML = found.figure; // escaped where it was drawn
  const heads = [["device"], ["devices", "n"], ["weights"], ["batch", "n"], ["ITL ms", "n"], ["TTFT ms", "n"], ["tok/s", "n"], ["$/h", "n"], ["$/M out", "n"], ["most users", "n"]];
  const fixed = (v, n) => (v === null ? "-" : v.toLocaleString("en", { maximumFractionDigits: n, minimumFractionDigits: n }));
  $("passing").replaceChildren(...(passing.length ? [row(heads, "th")] : []), ...passing.map((o) => row([
    [o.device], [String(o.devices), "n"], [o.weight_dtype], [fixed(o.batch, 0), "n"], [fixed(o.itl_ms, 2), "n"], [fixed(o.ttft_ms, 0), "n"],
    [fixed(o.throughput_tok_s, 0), "n"], [fixed(o.usd_per_hour, 2), "n"], [fixed(o.usd_per_mtok, 3), "n"], [fixed(o.max_users, 0), "n"],
  ])));
  $("h_dropped").hidden = dropped.length === 0;
  $("dropped").replaceChildren(...(dropped.length ? [row([["device"], ["reason"], ["nearest fix"]], "th")] : []), ...dropped.map((o) => row([[o.device], [o.reason], [o.fix]])));
}

// --- fields --------------------------------------------------------------------------------------------------------------------

function settle() {
  for (const part of document.querySelectorAll("[data-kind]")) part.hidden = part.dataset.kind !== kind();
  slide("users", Number(ask.elements.users.value) || choices.counts[0]);
  slide("batch", Number(ask.elements.batch.value) || choices.counts[0]);
  if ($("table_part").open) show_table();
}

function steps(name) { return name === "context" ? choices.contexts : choices.counts; }

function slide(name, value) {
  const slider = $(name + "_slider"), all = steps(name);
  const at = all.findLastIndex((s) => s <= value);
  slider.value = String(Math.max(0, at));
  slider.setAttribute("aria-valuetext", String(value));
}

function options(list, names) { list.append(...names.map((name) => new Option(name, name))); }

function prepare() {
  options($("models"), choices.models);
  options($("devices"), choices.devices);
  options(ask.elements.weight_dtype, choices.weight_dtypes);
  options(ask.elements.kv_dtype, choices.kv_dtypes.filter((d) => d !== "bf16"));
  options(ask.elements.math, choices.math);
  for (const name of ["context", "users", "batch"]) {
    const slider = $(name + "_slider");
    slider.max = String(steps(name).length - 1);
    slider.addEventListener("input", () => {
      ask.elements[name].value = String(steps(name)[Number(slider.value)]);
      changed();
    });
  }
  for (const name of ["", ...Object.keys(choices.presets)]) {
    const button = element("button", name || "no preset");
    button.type = "button";
    button.value = name;
    button.addEventListener("click", () => {
      preset = name;
      if (name) for (const other of ["context", "output", "itl", "users", "batch", "rate"]) ask.elements[other].value = "";
      changed();
    });
    $("presets").append(button);
  }
  $("home").hidden = !choices.home;
  $("rank").open = choices.local || !choices.home;
}

async function start() {
  $("key").value = sessionStorage.getItem("ridgeline.key") ?? "";
  try {
    choices = await get("plan/choices");
  } catch (error) {
    complain(error, "sheet");
    $("verdict").textContent = "";
    return;
  }
  prepare();
  restore();
  changed();
}

$("key").addEventListener("change", () => {
  sessionStorage.setItem("ridgeline.key", $("key").value);
  if (choices === null) start(); else changed();
});
ask.addEventListener("input", (event) => { if (event.target.name && choices) changed(); });
ask.addEventListener("submit", (event) => event.preventDefault());
$("formulas").addEventListener("change", () => { $("explain").hidden = !$("formulas").checked; });
$("pin").addEventListener("click", () => pin(pinned ? null : shown));
$("fewer").addEventListener("click", () => {
  pin(shown); // what it was stands beside what grouped queries make of it
  ask.elements.kv_heads.value = $("fewer").value;
  changed();
});
$("rank").addEventListener("toggle", () => { if ($("rank").open && choices) rank(); });
$("table_part").addEventListener("toggle", () => { if ($("table_part").open && choices) show_table(); });
$("reset").addEventListener("click", () => { location.search = ""; });
$("per_day").addEventListener("input", () => { if (choices) changed(); });
$("add_provider").addEventListener("submit", (event) => {
  event.preventDefault();
  const made = ["p_name", "p_input", "p_cached", "p_output"].map((id) => $(id).value.trim().replaceAll(/[;=/]/g, " "));
  if (!made[0]) { $("p_name").focus(); return; }
  providers.push([made[0], ...made.slice(1).map((v) => v || "0")]);
  for (const id of ["p_name", "p_input", "p_cached", "p_output"]) $(id).value = "";
  changed();
});
// On a narrow screen the answer lies below the form: a line at the bottom says it until it is in view.
new IntersectionObserver(([seen]) => $("brief").classList.toggle("away", !seen.isIntersecting && seen.boundingClientRect.top > 0)).observe($("verdict"));
let wide = 0;
addEventListener("resize", () => {
  if (choices === null || Math.abs($("answer").clientWidth - wide) < 24) return;
  wide = $("answer").clientWidth;
  changed();
});
wide = $("answer").clientWidth;
start();
