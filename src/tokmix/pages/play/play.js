"use strict";
// The page of `tokmix play`. Texts go in as text, never as HTML.
(async () => {
  const SHOWN = 5; // classes with a bar
  const $ = (id) => document.getElementById(id);
  const { make, shown } = charts;

  async function answer(response) {
    if (response.ok) return response;
    let why = `${response.status} ${response.statusText}`;
    try { why = (await response.json()).error ?? why; } catch { /* no reason given */ }
    throw new Error(why);
  }
  const post = (path, body, signal) =>
    fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal }).then(answer);
  const say = (words) => { $("message").textContent = words; };

  const facts = await (await answer(await fetch("/api/model"))).json();
  const writes = facts.task === "lm", labelled = ["classify", "multilabel", "regress"].includes(facts.task);
  $("name").textContent = facts.main.name;
  $("about").textContent = `${facts.task}: ${facts.main.stack}, width ${facts.main.dim}, ${shown(facts.main.parameters)} parameters; beside it ${facts.other.name}: ${facts.other.stack}, ${shown(facts.other.parameters)} parameters`;
  $("text").maxLength = $("text2").maxLength = facts.limits.text;
  $("second").hidden = !facts.pair;
  $("writing").hidden = !writes;
  $("max-new").max = facts.limits.max_new;
  if (writes) $("text-label").textContent = "Text to go on from";
  const texts = () => (facts.pair ? { text: $("text").value, text2: $("text2").value } : { text: $("text").value });
  const brief = (row) => { const words = row.join(" | "); return words.length > 90 ? `${words.slice(0, 88)} …` : words; };
  $("examples").hidden = !facts.examples.length;
  $("example").append(...facts.examples.map((row, at) => make("option", { value: at, text: brief(row) })));
  $("example").addEventListener("change", () => {
    const row = facts.examples[$("example").value];
    if (!row) return;
    [$("text").value, $("text2").value] = [row[0], row[1] ?? ""];
    typed();
  });
  const ready = () => Object.values(texts()).every((text) => text.trim());

  // --- label probabilities and maps, as one types -------------------------------------------------------------------
  let running = new AbortController(), waiting = 0;
  function typed() {
    clearTimeout(waiting);
    running.abort();
    running = new AbortController();
    const signal = running.signal;
    if (!ready()) { $("answer").hidden = $("why").hidden = $("maps").hidden = true; say(""); return; }
    waiting = setTimeout(async () => {
      try {
        const found = await (await post("/api/predict", texts(), signal)).json();
        say("");
        if (!writes) showAnswer(found);
        if (labelled) await showWords(signal);
        const long = found.tokens > facts.map_tokens;
        $("maps").hidden ||= long;
        if (long) say(`No map: the text has ${found.tokens} tokens, and a map takes at most ${facts.map_tokens}.`);
        else waiting = setTimeout(() => drawMaps(signal), 250);
      } catch (error) { if (error.name !== "AbortError") say(error.message); }
    }, 150);
  }

  function showAnswer(found) {
    $("answer").hidden = false;
    const said = found.main;
    $("answer-title").textContent = said.label !== undefined ? said.label : said.labels ? said.labels.join(", ") || "no label" : said.score !== undefined ? `score ${shown(said.score)}` : "Cost";
    const sorted = Object.entries(said.probabilities ?? {}).sort((a, b) => b[1] - a[1]);
    const rest = sorted.slice(SHOWN);
    const more = rest.length ? [make("p", { class: "note", text: `${rest.length} more classes share ${rest.reduce((sum, one) => sum + one[1], 0).toFixed(4)}` })] : [];
    $("bars").replaceChildren(...sorted.slice(0, SHOWN).map(([label, share], at) => {
      const fill = make("div", { class: "fill" });
      fill.style.width = `${100 * share}%`;
      return make("div", { class: at ? "bar" : "bar first" }, make("span", { text: label }), make("div", { class: "track" }, fill), make("span", { class: "share", text: share.toFixed(4) }));
    }), ...more);
    const cost = (player, one) => `${player.name} ${one.ms.toFixed(1)} ms, ${shown(one.flops)} FLOPs`;
    let words = `${found.tokens} tokens${found.cut ? ", the rest is cut off" : ""}: ${cost(facts.main, found.main)}; ${cost(facts.other, found.other)}`;
    if (found.other.label !== undefined) words += `; it says ${found.other.label} (${found.other.probabilities[found.other.label].toFixed(4)})`;
    if (found.other.score !== undefined) words += `; it says ${shown(found.other.score)}`;
    $("took").textContent = words;
  }

  async function showWords(signal) {
    try {
      const found = await (await post("/api/words", texts(), signal)).json();
      $("why").hidden = false;
      $("words").replaceChildren(...found.texts.map((row) => make("p", { class: "words" }, ...row.map(({ text, effect, share }) => {
        if (effect === null) return document.createTextNode(text);
        const word = make("span", { class: share > 0 ? "for" : "against", title: effect.toFixed(2), text });
        word.style.setProperty("--share", `${100 * Math.abs(share)}%`);
        return word;
      }))));
      $("why-lines").replaceChildren(...found.lines.map((line) => make("p", { class: "note", text: line })));
    } catch (error) {
      if (error.name === "AbortError") throw error;
      $("why").hidden = true;
      say(error.message);
    }
  }

  // One map at a time: a pause in typing has no time for all of them.
  const places = ["main", ...(facts.other.untrained ? [] : ["other"])].flatMap((model) => [
    { model, layer: 0, title: "the whole stack" }, ...facts[model].layers.map((kind, i) => ({ model, layer: i + 1, title: `layer ${i + 1}, ${kind}` })),
  ]);
  $("layer").append(...places.map((place) => make("option", { text: facts.other.untrained ? place.title : `${facts[place.model].name}: ${place.title}` })));

  async function drawMaps(signal) {
    try {
      const { model, layer } = places[$("layer").selectedIndex];
      const found = await (await post("/api/map", { ...texts(), model, layer }, signal)).json();
      $("maps").hidden = false;
      charts.maps($("map"), [found]);
      $("map-note").textContent = `${found.tokens.length} tokens, computed in ${shown(found.ms)} ms`;
    } catch (error) {
      if (error.name === "AbortError") return;
      $("maps").hidden = true;
      say(error.message);
    }
  }

  // --- a text that goes on ------------------------------------------------------------------------------------------
  function stage(id) {
    const player = facts[id], words = make("p", { class: "said" }), numbers = make("dl"), made = [];
    words.append(make("b", { text: $("text").value }));
    const head = [make("h3", { text: player.name })];
    if (player.untrained) head.push(make("p", { class: "mark", text: "untrained: its words are noise, its time and state are not" }));
    $(id).replaceChildren(...head, words, numbers);
    const middle = (values) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)];
    return {
      made,
      add(token) {
        made.push(token);
        words.append(token.text);
        words.scrollTop = words.scrollHeight;
        const later = made.slice(1).map((one) => one.ms);
        const rows = [["tokens", made.length], ["prompt read in", `${made[0].ms.toFixed(1)} ms`], ["a token", later.length ? `${middle(later).toFixed(2)} ms (median)` : "–"], ["state", `${shown(token.state)} numbers after ${token.read} tokens`]];
        numbers.replaceChildren(...rows.flatMap(([name, value]) => [make("dt", { text: name }), make("dd", { text: String(value) })]));
      },
    };
  }

  async function write(id, signal) {
    const place = stage(id);
    const asked = { text: $("text").value, model: id, max_new: Number($("max-new").value), temperature: Number($("temperature").value), seed: Number($("seed").value) };
    const response = await post("/api/generate", asked, signal);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return place.made;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) place.add(JSON.parse(line));
    }
  }

  function pace(made) {
    const series = (what, from) => Object.entries(made).map(([id, tokens], colour) => ({
      name: facts[id].name, colour, x: tokens.slice(from).map((one) => one.read), y: tokens.slice(from).map((one) => one[what]),
    }));
    const view = (key, label, what, from) => ({ keys: [key], x: { label: "tokens read", log: false }, y: { label, log: false }, series: series(what, from) });
    if (Object.values(made).every((tokens) => tokens.length < 2)) return;
    charts.chart($("pace"), { dims: ["show"], views: [view("state", "numbers kept", "state", 0), view("milliseconds a token", "ms", "ms", 1)] });
  }

  async function goOn() {
    if (!ready()) { say("Type a text to go on from."); return; }
    running.abort();
    running = new AbortController();
    const signal = running.signal, made = {};
    $("streams").hidden = false;
    $("pace").replaceChildren();
    $("go").disabled = true;
    $("stop").disabled = false;
    say("");
    try {
      for (const id of ["main", "other"]) made[id] = await write(id, signal); // one after the other: side by side they would slow each other
    } catch (error) { if (error.name !== "AbortError") say(error.message); }
    $("go").disabled = false;
    $("stop").disabled = true;
    pace(made);
  }

  $("text").addEventListener("input", typed);
  $("text2").addEventListener("input", typed);
  $("layer").addEventListener("change", () => drawMaps(running.signal));
  $("go").addEventListener("click", goOn);
  $("stop").addEventListener("click", () => running.abort());
  $("temperature").addEventListener("input", () => { $("temperature-value").textContent = $("temperature").value; });
  document.body.dataset.ready = "true";
})().catch((error) => { document.getElementById("about").textContent = `The server does not answer: ${error.message}`; });
