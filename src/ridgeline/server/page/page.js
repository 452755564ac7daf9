"use strict";
// The chat page: one conversation, streamed from /v1/chat/completions of the server that sent it. No framework, no build, nothing from elsewhere.

const $ = (id) => document.getElementById(id);
const talk = $("talk");
const turns = []; // what is sent: {role, content}
let running = null; // AbortController of the answer under way

const kept = ["system", "temperature", "top_p", "top_k", "max_tokens", "seed"];
for (const id of kept) {
  const value = localStorage.getItem("ridgeline." + id);
  if (value !== null) $(id).value = value;
  $(id).addEventListener("input", () => localStorage.setItem("ridgeline." + id, $(id).value));
}
$("key").value = sessionStorage.getItem("ridgeline.key") ?? "";
$("key").addEventListener("input", () => { sessionStorage.setItem("ridgeline.key", $("key").value); name_model(); });

function headers() {
  const key = $("key").value;
  return { "content-type": "application/json", ...(key ? { authorization: "Bearer " + key } : {}) };
}

async function name_model() {
  try {
    const reply = await fetch("v1/models", { headers: headers() });
    if (reply.status === 401) {
      const open = !$("settings").hidden;
      $("model").textContent = $("key").value ? "this API key is not known here" : "this server wants an API key: type it below";
      show_settings(true);
      if (!open) $("key").focus();
      return;
    }
    const document = await reply.json();
    const card = document.data?.[0];
    $("model").textContent = card ? `${card.id}, ${card.max_model_len} tokens` : document.error?.message ?? "";
  } catch (error) {
    $("model").textContent = "the server does not answer";
  }
}

function show_settings(open) {
  $("settings").hidden = !open;
  $("toggle").setAttribute("aria-expanded", String(open));
}

function number(id) {
  const value = $(id).value.trim();
  return value === "" || !Number.isFinite(Number(value)) ? null : Number(value);
}

function body() {
  const system = $("system").value.trim();
  const asked = { messages: [...(system ? [{ role: "system", content: system }] : []), ...turns], stream: true, stream_options: { include_usage: true } };
  for (const id of ["temperature", "top_p", "top_k", "max_tokens", "seed"]) {
    const value = number(id);
    if (value !== null) asked[id] = value;
  }
  return asked;
}

function add(role) {
  $("empty")?.remove();
  const turn = document.createElement("article");
  turn.className = "turn " + role;
  const thoughts = document.createElement("div");
  thoughts.className = "thoughts";
  thoughts.hidden = true;
  const words = document.createElement("div");
  words.className = "words";
  const facts = document.createElement("div");
  facts.className = "facts";
  turn.append(thoughts, words, facts);
  talk.append(turn);
  return { turn, thoughts, words, facts };
}

function at_end() {
  return talk.scrollHeight - talk.scrollTop - talk.clientHeight < 40;
}

function append(node, text) {
  const follow = at_end();
  node.hidden = false;
  node.append(text);
  if (follow) talk.scrollTop = talk.scrollHeight;
}

async function* events(reply) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    held += value;
    let end;
    while ((end = held.indexOf("\n\n")) >= 0) {
      const line = held.slice(0, end);
      held = held.slice(end + 2);
      if (line.startsWith("data: ")) yield line.slice(6);
    }
  }
}

async function answer() {
  const place = add("assistant");
  const began = performance.now();
  let first = 0, last = 0, text = "", usage = null, finish = null, whole = false;
  running = new AbortController();
  busy(true);
  try {
    const reply = await fetch("v1/chat/completions", { method: "POST", headers: headers(), body: JSON.stringify(body()), signal: running.signal });
    if (!reply.ok) throw new Error((await reply.json()).error?.message ?? `HTTP ${reply.status}`);
    for await (const data of events(reply)) {
      if (data === "[DONE]") { whole = true; break; }
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      usage = chunk.usage ?? usage;
      const choice = chunk.choices[0];
      if (!choice) continue;
      finish = choice.finish_reason ?? finish;
      const thought = choice.delta.reasoning_content, words = choice.delta.content;
      if (thought || words) { last = performance.now(); first ||= last; }
      if (thought) append(place.thoughts, thought);
      if (words) { text += words; append(place.words, words); }
    }
    if (!whole) throw new Error("the connection ended before the answer did");
  } catch (error) {
    const stopped = error.name === "AbortError";
    if (!stopped) { place.facts.classList.add("fault"); place.facts.textContent = error.message; }
    finish = stopped ? "stopped" : "fault";
  } finally {
    running = null;
    busy(false);
  }
  if (text) turns.push({ role: "assistant", content: text });
  else if (finish === "fault" || finish === "stopped") turns.pop();
  const follow = at_end() || finish === "fault";
  if (finish !== "fault") place.facts.textContent = facts(usage, finish, began, first, last);
  if (follow) talk.scrollTop = talk.scrollHeight;
}

function facts(usage, finish, began, first, last) {
  const found = [];
  if (usage) {
    const made = usage.completion_tokens, seconds = (last - first) / 1000;
    found.push(`${made} tokens`);
    if (made > 1 && seconds > 0) found.push(`${((made - 1) / seconds).toFixed(1)} tokens/s`);
    found.push(`prompt ${usage.prompt_tokens}, ${usage.prompt_tokens_details?.cached_tokens ?? 0} cached`);
  }
  if (first) found.push(`first after ${((first - began) / 1000).toFixed(2)} s`);
  if (finish && finish !== "stop") found.push(finish === "length" ? "cut at the limit" : finish);
  return found.join(" · ");
}

function busy(yes) {
  $("send").hidden = yes;
  $("stop").hidden = !yes;
  if (!yes) $("text").focus();
}

function send() {
  const text = $("text").value.trim();
  if (!text || running) return;
  $("text").value = "";
  grow();
  turns.push({ role: "user", content: text });
  add("user").words.textContent = text;
  talk.scrollTop = talk.scrollHeight;
  answer();
}

function grow() {
  const text = $("text");
  text.style.height = "auto";
  text.style.height = text.scrollHeight + 2 + "px";
}

$("ask").addEventListener("submit", (event) => { event.preventDefault(); send(); });
$("text").addEventListener("input", grow);
$("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
});
$("stop").addEventListener("click", () => running?.abort());
document.addEventListener("keydown", (event) => { if (event.key === "Escape") running?.abort(); });
$("clear").addEventListener("click", () => { running?.abort(); turns.length = 0; talk.replaceChildren(); $("text").focus(); });
$("toggle").addEventListener("click", () => show_settings($("settings").hidden));
$("settings").addEventListener("submit", (event) => event.preventDefault());
name_model();
