// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// The conversation: settings, the request and its stream, turns on the page. Talks to this server
// alone, in OpenAI's words; keeps settings in the browser, the API key only until the tab closes.
'use strict';

const $ = (id) => document.getElementById(id);
const el = Markdown.element;
const IDEAS = ['Drive two metres forward', 'How full is the battery?', 'What can you do?'];
const DEFAULTS = {system: '', temperature: '', maxTokens: '', seed: '', thinking: false,
  tools: '', theme: 'auto'};
const store = {
  load: () => {
    try { return {...DEFAULTS, ...JSON.parse(localStorage.getItem('settings') || '{}')}; }
    catch { return {...DEFAULTS}; }
  },
  save: () => localStorage.setItem('settings', JSON.stringify(settings)),
};
const settings = store.load();
let messages = [];                     // the conversation in OpenAI's form, no system message
let model = null;                      // a card of /v1/models
let running = null;                    // AbortController of the answer under way
let lastSent = '';

function classed(made, name) {
  made.className = name;
  return made;
}

function button(text, action) {
  const made = el('button', text);
  made.type = 'button';
  made.addEventListener('click', action);
  return made;
}

function headers() {
  const key = sessionStorage.getItem('key');
  return {'Content-Type': 'application/json', ...(key ? {Authorization: `Bearer ${key}`} : {})};
}

function note(text) {
  $('note').textContent = text;
  $('note').hidden = false;
  clearTimeout(note.timer);
  note.timer = setTimeout(() => { $('note').hidden = true; }, 5000);
}

// ---- the server's state ----

async function watchServer() {
  for (;;) {
    let wait = 1000;
    try {
      const health = await (await fetch('/health')).json();
      if (health.status === 'ok') {
        const answer = await fetch('/v1/models', {headers: headers()});
        if (answer.ok) {
          model = (await answer.json()).data[0];
          showState('ok', model.id);
          $('attach').hidden = !model.images;
          wait = 10000;
        } else {
          showState('bad', answer.status === 401 ? 'an API key is needed' : 'refused');
        }
      } else if (health.status === 'loading') {
        showState('', `${health.stage} ${Math.round(100 * health.progress)}%`);
      } else {
        showState('bad', health.error || health.status);
      }
    } catch {
      showState('bad', 'the server does not answer');
    }
    await new Promise((done) => { watchServer.again = done; setTimeout(done, wait); });
  }
}

function showState(kind, text) {
  $('dot').className = kind;
  $('state-text').textContent = text;
  $('state').title = text;
}

// ---- an answer ----

function requestBody() {
  const system = settings.system.trim();
  const body = {
    messages: [...(system ? [{role: 'system', content: system}] : []), ...messages],
    stream: true,
    stream_options: {include_usage: true},
    enable_thinking: settings.thinking,
  };
  if (settings.temperature !== '') body.temperature = Number(settings.temperature);
  if (settings.maxTokens !== '') body.max_tokens = Number(settings.maxTokens);
  if (settings.seed !== '') body.seed = Number(settings.seed);
  const tools = settings.tools.trim() ? JSON.parse(settings.tools) : [];
  if (tools.length) body.tools = tools;
  return body;
}

async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    rest += value;
    const parts = rest.split('\n\n');
    rest = parts.pop();
    for (const part of parts) {
      if (part.startsWith('data: ') && part !== 'data: [DONE]') yield JSON.parse(part.slice(6));
    }
  }
}

function take(answer, event) {
  if (event.error) throw new Error(event.error.message);
  answer.usage = event.usage || answer.usage;
  answer.timings = event.timings || answer.timings;
  for (const choice of event.choices || []) {
    answer.finish = choice.finish_reason || answer.finish;
    answer.text += choice.delta.content || '';
    answer.reasoning += choice.delta.reasoning_content || '';
    for (const piece of choice.delta.tool_calls || []) {
      const call = answer.calls[piece.index] || (answer.calls[piece.index] = {
        id: piece.id, type: 'function', function: {name: piece.function.name, arguments: ''}});
      call.function.arguments += piece.function.arguments || '';
    }
  }
}

async function generate() {
  const answer = {text: '', reasoning: '', calls: [], finish: '', usage: null, timings: null,
    error: '', begin: performance.now(), first: 0};
  const view = new AnswerView();
  running = new AbortController();
  showRunning(true);
  let drawn = 0;
  const draw = () => {
    drawn = drawn || requestAnimationFrame(() => { drawn = 0; view.show(answer, true); });
  };
  draw();
  try {
    const response = await fetch('/v1/chat/completions', {method: 'POST', headers: headers(),
      body: JSON.stringify(requestBody()), signal: running.signal});
    if (!response.ok) {
      const problem = await response.json().catch(() => null);
      if (response.status === 401) openSettings('key');
      throw new Error(problem?.error?.message || `the server answered ${response.status}`);
    }
    for await (const event of eventsOf(response)) {
      take(answer, event);
      if (!answer.first && (answer.text || answer.reasoning)) answer.first = performance.now();
      draw();
    }
    if (!answer.finish) throw new Error('the answer broke off');
  } catch (error) {
    if (error.name === 'AbortError') answer.finish = 'stopped';
    else answer.error = error.message === 'Failed to fetch' ? 'the server does not answer'
      : error.message;
  }
  cancelAnimationFrame(drawn);
  running = null;
  answer.end = performance.now();
  keep(answer);
  showRunning(false);
  view.show(answer, false);
}

function keep(answer) {
  answer.calls = answer.finish === 'tool_calls' ? answer.calls : [];
  if (answer.error || !(answer.text || answer.calls.length)) return;
  const message = {role: 'assistant', content: answer.text || null};
  if (answer.calls.length) {
    message.tool_calls = answer.calls;
    if (answer.reasoning) message.reasoning_content = answer.reasoning;
  }
  messages.push(message);
}

// What the model shows of an answer, growing.
class AnswerView {
  constructor() {
    this.thought = classed(el('details', el('summary', 'Thinking'), el('div')), 'thought');
    this.text = classed(el('div'), 'text');
    this.calls = el('div');
    this.foot = classed(el('div'), 'foot');
    this.turn = classed(el('article', this.thought, this.text, this.calls, this.foot),
      'turn answer');
    this.turn.setAttribute('aria-label', 'Answer');
    this.thought.hidden = true;
    $('log').append(this.turn);
  }

  show(answer, growing) {
    const atEnd = isAtEnd();
    if (answer.reasoning) {
      this.thought.hidden = false;
      this.thought.lastChild.textContent = answer.reasoning;
      const busy = growing && !answer.text && !answer.calls.length;
      this.thought.firstChild.textContent = busy ? 'Thinking…' : 'Thought';
      if (busy !== this.wasBusy) this.thought.open = busy;
      this.wasBusy = busy;
    }
    Markdown.show(this.text, answer.text);
    this.text.classList.toggle('busy', growing);
    for (let i = this.calls.childElementCount; i < answer.calls.length; i++) {
      this.calls.append(callCard(answer.calls[i], answer));
    }
    if (!growing) this.end(answer);
    if (atEnd) toEnd();
  }

  end(answer) {
    this.calls.replaceChildren(...answer.calls.map((call) => callCard(call, answer)));
    if (answer.error) this.foot.append(classed(el('span', answer.error), 'error'));
    for (const fact of facts(answer)) this.foot.append(el('span', fact));
    if (answer.text) {
      const copy = button('Copy', () => copyText(answer.text, copy));
      this.foot.append(copy);
    }
    const again = button('Try again', () => {
      if (running) return;
      const last = messages.map((message) => message.role).lastIndexOf('user');
      messages = messages.slice(0, last + 1);
      while (this.turn.nextSibling) this.turn.nextSibling.remove();
      this.turn.remove();
      generate();
    });
    if (!answer.calls.length) this.foot.append(again);
    const input = this.calls.querySelector('input');
    if (input) input.focus();
  }
}

function facts(answer) {
  const shown = [];
  const usage = answer.usage;
  if (usage) {
    const tokens = usage.completion_tokens;
    shown.push(`${tokens} token${tokens === 1 ? '' : 's'}`);
    const seconds = (answer.end - (answer.first || answer.end)) / 1000;
    const rate = answer.timings?.tokens_per_s || (seconds > 0 ? (tokens - 1) / seconds : 0);
    if (rate) shown.push(`${rate >= 10 ? Math.round(rate) : rate.toFixed(1)} tok/s`);
    const details = usage.completion_tokens_details || {};
    const accepted = details.accepted_prediction_tokens || 0;
    const drafted = accepted + (details.rejected_prediction_tokens || 0);
    if (drafted) shown.push(`${Math.round(100 * accepted / drafted)}% of drafts kept`);
    const cached = usage.prompt_tokens_details?.cached_tokens || 0;
    if (cached) shown.push(`${cached} of ${usage.prompt_tokens} prompt tokens cached`);
  }
  if (answer.finish === 'length') shown.push('cut at the token limit');
  if (answer.finish === 'stopped') shown.push('stopped');
  return shown;
}

// ---- tool calls ----

function callCard(call, answer) {
  const card = classed(el('div', classed(el('span', call.function.name), 'name')), 'call');
  let values = null;
  try { values = JSON.parse(call.function.arguments); } catch { /* still growing */ }
  if (values && Object.keys(values).length) {
    const list = el('dl');
    for (const [name, value] of Object.entries(values)) {
      list.append(el('dt', name),
        el('dd', typeof value === 'string' ? value : JSON.stringify(value)));
    }
    card.append(list);
  } else if (!values) {
    card.append(el('div', call.function.arguments));
  }
  if (answer.finish === 'tool_calls' && !running) card.append(resultForm(call));
  return card;
}

function resultForm(call) {
  const input = el('input');
  input.placeholder = 'What the tool answers';
  input.setAttribute('aria-label', `Result of ${call.function.name}`);
  const form = classed(el('form', input, el('button', 'Answer')), 'result');
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    messages.push({role: 'tool', tool_call_id: call.id, content: input.value});
    form.replaceWith(classed(el('div', `→ ${input.value}`), 'given'));
    const next = document.querySelector('.call .result input');
    if (next) next.focus();
    else if (!running) {
      $('input').focus();
      generate();
    }
  });
  return form;
}

// ---- the composer ----

function send(text) {
  if (running || !(text.trim() || Images.any())) return;
  if (settings.tools.trim() && !toolsAreFine()) return;
  for (const form of document.querySelectorAll('.call .result')) form.remove();
  lastSent = text;
  const {content, shown} = Images.take(text, $('attached'), grow);
  messages.push({role: 'user', content});
  $('hello').hidden = true;
  const bubble = classed(el('article', classed(el('div', ...shown, text), 'text')), 'turn user');
  bubble.setAttribute('aria-label', 'You');
  $('log').append(bubble);
  $('input').value = '';
  grow();
  toEnd();
  generate();
}

function stop() {
  if (running) running.abort();        // closes the connection, and so ends the request
}

function showRunning(on) {
  $('send').hidden = on;
  $('stop').hidden = !on;
}

function reset() {
  stop();
  messages = [];
  Images.clear($('attached'), grow);
  $('log').replaceChildren();
  $('hello').hidden = false;
  $('input').focus();
}

function grow() {
  const input = $('input');
  input.style.height = 'auto';
  input.style.height = `${input.scrollHeight + 2}px`;
  $('send').disabled = !(input.value.trim() || Images.any());
}

function isAtEnd() {
  const box = $('scroll');
  return box.scrollHeight - box.scrollTop - box.clientHeight < 60;
}

function toEnd() {
  $('scroll').scrollTop = $('scroll').scrollHeight;
}

// ---- settings ----

const FIELDS = {system: 'system', temperature: 'temperature', 'max-tokens': 'maxTokens',
  seed: 'seed', tools: 'tools'};

function openSettings(focus) {
  for (const [id, name] of Object.entries(FIELDS)) $(id).value = settings[name];
  $('thinking').checked = settings.thinking;
  $('key').value = sessionStorage.getItem('key') || '';
  toolsAreFine();
  if (!$('settings').open) $('settings').showModal();
  $(focus || 'system').focus();
}

function readSettings() {
  for (const [id, name] of Object.entries(FIELDS)) settings[name] = $(id).value;
  settings.thinking = $('thinking').checked;
  sessionStorage.setItem('key', $('key').value);
  toolsAreFine();
  store.save();
}

function toolsAreFine() {
  let problem = '';
  try {
    if (settings.tools.trim() && !Array.isArray(JSON.parse(settings.tools))) {
      problem = 'The tools must be a JSON list.';
    }
  } catch (error) {
    problem = `The tools are no JSON: ${error.message}`;
  }
  $('tools-error').textContent = problem;
  $('tools-error').hidden = !problem;
  if (problem && !$('settings').open) openSettings('tools');
  return !problem;
}

function showTheme() {
  const root = document.documentElement;
  if (settings.theme === 'auto') root.removeAttribute('data-theme');
  else root.dataset.theme = settings.theme;
  $('theme').textContent = {auto: 'Auto', light: 'Light', dark: 'Dark'}[settings.theme];
}

// ---- keys, clicks, drops ----

$('composer').addEventListener('submit', (event) => {
  event.preventDefault();
  send($('input').value);
});
$('input').addEventListener('input', grow);
$('input').addEventListener('keydown', (event) => {
  if (event.isComposing) return;
  if (event.key === 'Enter' && !event.shiftKey) {
    event.preventDefault();
    send($('input').value);
  } else if (event.key === 'ArrowUp' && !$('input').value && lastSent) {
    event.preventDefault();
    $('input').value = lastSent;
    grow();
  }
});
document.addEventListener('keydown', (event) => {
  if (event.key === 'Escape' && !$('settings').open) {
    stop();
    $('input').focus();
  } else if (event.key === '/' && !/INPUT|TEXTAREA/.test(document.activeElement.tagName)) {
    event.preventDefault();
    $('input').focus();
  }
});
$('stop').addEventListener('click', () => { stop(); $('input').focus(); });
$('new').addEventListener('click', reset);
$('open-settings').addEventListener('click', () => openSettings());
$('settings').addEventListener('input', readSettings);
$('settings').addEventListener('close', () => {
  readSettings();
  $('input').focus();
  if (watchServer.again) watchServer.again();
});
$('theme').addEventListener('click', () => {
  settings.theme = {auto: 'light', light: 'dark', dark: 'auto'}[settings.theme];
  store.save();
  showTheme();
});
$('scroll').addEventListener('scroll', () => { $('to-end').hidden = isAtEnd(); });
$('to-end').addEventListener('click', toEnd);

async function takeFiles(files) {
  const image = [...files].some((file) => file.type.startsWith('image/'));
  const problem = model && model.images ? await Images.attach(files, $('attached'), grow)
    : image ? 'This model takes no images.' : 'Only text can be sent.';
  if (problem) note(problem);
  $('input').focus();
}

$('attach').addEventListener('click', () => $('files').click());
$('files').addEventListener('change', () => {
  takeFiles([...$('files').files]);
  $('files').value = '';
});

for (const name of ['dragenter', 'dragover']) {
  document.addEventListener(name, (event) => {
    event.preventDefault();
    document.body.classList.add('drop');
  });
}
document.addEventListener('dragleave', (event) => {
  if (!event.relatedTarget) document.body.classList.remove('drop');
});
document.addEventListener('drop', (event) => {
  event.preventDefault();
  document.body.classList.remove('drop');
  if (event.dataTransfer.files.length) takeFiles(event.dataTransfer.files);
});
document.addEventListener('paste', (event) => {
  if (event.clipboardData?.files.length) {
    event.preventDefault();
    takeFiles(event.clipboardData.files);
  }
});

for (const idea of IDEAS) $('ideas').append(button(idea, () => send(idea)));
showTheme();
grow();
$('input').focus();
watchServer();
