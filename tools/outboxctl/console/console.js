// The console of outboxctl serve. All text from databases becomes text nodes, never markup; the
// Content-Security-Policy of the page refuses anything else (Trusted Types).
'use strict';

const look_every = 2000; // milliseconds
const looks_kept = 150;  // of each plot

let session = {};
const history = new Map(); // of each destination and consumer: [{at, total, rate, waiting}]

// ---------------------------------------------------------------------------------------------
// Elements
// ---------------------------------------------------------------------------------------------

const svg_names = new Set(['svg', 'path', 'title']);

// Makes an element. A property that begins with "on" is a listener.
function make(name, properties = {}, ...children) {
  const is_svg = svg_names.has(name);
  const element = is_svg ? document.createElementNS('http://www.w3.org/2000/svg', name) : document.createElement(name);
  for (const [key, value] of Object.entries(properties))
    if (key.startsWith('on'))
      element.addEventListener(key.slice(2), value);
    else if (value !== undefined && value !== false)
      element.setAttribute(key, value === true ? '' : value);
  for (const child of children.flat(Infinity))
    if (child !== null && child !== undefined)
      element.append(child instanceof Node ? child : String(child));
  return element;
}

function number(value) {
  return value === null || value === undefined ? '' : Number(value).toLocaleString('en', {maximumFractionDigits: 1});
}

function time(value) {
  return value ? new Date(value).toLocaleString() : '';
}

const good_states = ['idle', 'delivering', 'processing', 'PUBLISHED', 'APPLIED', 'pull', 'handled outside', 'claimed', 'standby'];
const bad_states = ['backing off', 'misconfigured', 'stopped', 'failing', 'held back', 'not confirmed', 'not subscribed',
                    'DEAD', 'RETRY', 'NO DESTINATION', 'UNKNOWN'];

function state(value) {
  const kind = good_states.includes(value) ? 'good' : bad_states.includes(value) ? 'bad' : 'warn';
  return make('span', {class: `state ${kind}`}, value);
}

function event_link(id) {
  return id ? make('a', {href: `#/event/${encodeURIComponent(id)}`}, id) : '';
}

const longest_cell = 200; // characters

// Cuts a long text, so that a row stays a few lines high; the rest is in its tooltip.
function cut(value, kind) {
  if (!['text', 'error'].includes(kind) || typeof value !== 'string' || value.length <= longest_cell)
    return value;
  return make('span', {title: value}, [...value.slice(0, longest_cell)].slice(0, -1).join('') + '…');
}

// Columns: [heading, value(row), class]. Texts of the classes text and error are cut. `rows` may be an object with an error instead.
function table(columns, rows, none) {
  if (rows.error)
    return make('p', {class: 'none'}, rows.error);
  if (rows.length === 0)
    return make('p', {class: 'none'}, none);
  return make('div', {class: 'scroll'}, make('table', {},
    make('thead', {}, make('tr', {}, columns.map(([heading, , kind]) => make('th', {class: kind}, heading)))),
    make('tbody', {}, rows.map(row => make('tr', {},
      columns.map(([, value, kind]) => make('td', {class: kind}, cut(value(row), kind))))))));
}

// A list of the members of an object that have a value.
function facts(object, special = {}) {
  const rows = Object.entries(object).filter(([, value]) => value !== null && value !== '');
  return make('table', {class: 'facts'}, make('tbody', {}, rows.map(([key, value]) => make('tr', {},
    make('th', {}, key.replaceAll('_', ' ')),
    make('td', {}, key in special ? special[key](value) : /(_at|^since|_since)$/.test(key) ? time(value) : String(value))))));
}

// A line of values at times, in a box of its own. Plots start at zero.
function plot(points, value, kind, title) {
  const width = 140, height = 26;
  const values = points.map(value);
  const top = Math.max(...values, 0) || 1;
  const end = points.length ? points[points.length - 1].at : 0;
  const span = Math.max(end - (points.length ? points[0].at : 0), look_every * 10);
  const spots = points.map((point, n) =>
    `${(width - (end - point.at) / span * width).toFixed(1)},${(height - 1 - values[n] / top * (height - 3)).toFixed(1)}`);
  const line = spots.length > 1 ? 'M' + spots.join('L') : '';
  const left = spots.length ? spots[0].split(',')[0] : 0;
  return make('svg', {class: `plot ${kind}`, viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: 'none', role: 'img'},
    make('title', {}, `${title}; highest: ${number(top)}`),
    make('path', {class: 'area', d: line ? `${line}L${width},${height}L${left},${height}Z` : ''}),
    make('path', {d: line}));
}

function findings(rows) {
  if (rows.error)
    return make('p', {class: 'none'}, rows.error);
  return rows.map(row => make('div', {class: `finding ${row.severity}`},
    make('p', {}, make('strong', {}, `${row.severity}: ${row.object}`), ' ', row.what, row.since ? ` since ${time(row.since)}` : ''),
    row.why ? make('p', {}, row.why) : null,
    row.what_to_do ? make('p', {class: 'hint'}, row.what_to_do) : null));
}

// ---------------------------------------------------------------------------------------------
// Requests
// ---------------------------------------------------------------------------------------------

async function request(path, parameters, options) {
  const query = new URLSearchParams(parameters);
  const answer = options ? await fetch(`/console/api/${path}`, {...options, body: query}) : await fetch(`/console/api/${path}?${query}`);
  if (answer.status === 401)
    location.reload(); // the page to log in
  const result = await answer.json();
  if (!answer.ok)
    throw new Error(result.error);
  return result;
}

const get = (path, parameters = {}) => request(path, parameters);
const post = (path, parameters = {}) => request(path, parameters, {method: 'POST', headers: {'X-CSRF-Token': session.csrf_token}});

function say(text) {
  const message = document.getElementById('message');
  message.textContent = text;
  message.hidden = text === '';
}

// Asks for a reason, does it, and shows the page again.
function ask(title, what, path, parameters) {
  const dialog = document.getElementById('ask');
  dialog.querySelector('h2').textContent = title;
  dialog.querySelector('.what').textContent = what;
  const why = document.getElementById('why');
  why.value = '';
  dialog.returnValue = '';
  dialog.onclose = async () => {
    if (dialog.returnValue !== 'do')
      return;
    try {
      await post(path, {...parameters, why: why.value});
      say('');
    } catch (error) {
      say(error.message);
    }
    show();
  };
  dialog.showModal();
}

function action(label, title, what, path, parameters) {
  return make('button', {disabled: !session.writes, 'data-action': path, title: session.writes ? '' : 'The console is read-only (--console-write)',
                         onclick: () => ask(title, what, path, parameters)}, label);
}

// ---------------------------------------------------------------------------------------------
// Overview
// ---------------------------------------------------------------------------------------------

function remember(key, total, waiting) {
  const points = history.get(key) || [];
  const last = points[points.length - 1];
  const at = performance.now();
  // A counter that has fallen has started anew.
  const rate = last && total >= last.total && at > last.at ? (total - last.total) / (at - last.at) * 1000 : 0;
  points.push({at, total, rate, waiting});
  history.set(key, points.slice(-looks_kept));
}

function remember_all(databases) {
  for (const database of databases)
    for (const side of ['outbox', 'inbox'])
      for (const row of Array.isArray(database[side]) ? database[side] : [])
        remember(key_of(database.id, side, row.name), Number(row.total), Number(row.waiting));
}

const key_of = (database, side, name) => JSON.stringify([database, side, name]);
const link_of = (database, side, name) => '#/place/' + [database, side, name].map(encodeURIComponent).join('/');
const points_of = (...place) => history.get(key_of(...place)) || [];

function section(database, side, title) {
  const points = row => points_of(database.id, side, row.name);
  return [make('h3', {}, title), table([
    ['Name', row => make('a', {href: link_of(database.id, side, row.name)}, row.name)],
    ['State', row => state(row.state)],
    ['Events/s', row => { const all = points(row); return number(all.length ? all[all.length - 1].rate : 0); }, 'number'],
    ['', row => plot(points(row).slice(-60), point => point.rate, 'rate', 'events per second')],
    ['Total', row => number(row.total), 'number'],
    ['Waiting', row => number(row.waiting), 'number'],
    ['', row => plot(points(row).slice(-60), point => point.waiting, 'waiting', 'waiting events')],
    ['Keys held', row => number(row.keys), 'number'],
    ['Oldest', row => row.oldest, 'number'],
    ['p50 ms', row => number(row.p50_ms), 'number'],
    ['p99 ms', row => number(row.p99_ms), 'number'],
    ['Dead letters', row => row.dead_letters > 0 ? make('strong', {class: 'bad'}, number(row.dead_letters)) : '0', 'number'],
    ['Last error', row => row.error, 'error'],
  ], database[side], 'none')];
}

async function overview() {
  const databases = await get('overview');
  remember_all(databases);
  return databases.map(database => make('section', {},
    make('h2', {}, database.database),
    database.error ? make('div', {class: 'finding failing'}, make('p', {}, database.error)) : null,
    database.outbox_health ? findings(database.outbox_health) : null,
    database.inbox_health ? findings(database.inbox_health) : null,
    database.outbox ? section(database, 'outbox', 'Destinations') : null,
    database.inbox ? section(database, 'inbox', 'Consumers') : null,
    !database.error && !database.outbox && !database.inbox ? make('p', {class: 'none'}, 'has neither pg_outbox nor pg_inbox') : null));
}

// ---------------------------------------------------------------------------------------------
// A destination or consumer
// ---------------------------------------------------------------------------------------------

const chosen = new Set(); // ids of dead letters; they stay chosen when the page is shown again

function dead_letters(place, rows) {
  const shown = new Set(Array.isArray(rows) ? rows.map(row => row.event_id) : []);
  for (const id of chosen)
    if (!shown.has(id))
      chosen.delete(id);
  const decide = (label, path, what) => make('button', {disabled: !session.writes, 'data-action': path, onclick: () => {
    if (chosen.size === 0)
      return say('Choose dead letters first.');
    ask(`${label} ${chosen.size} of "${place.name}"?`, what, path, {...place, event_ids: [...chosen].join(',')});
  }}, label);
  const choose = row => make('input', {type: 'checkbox', 'aria-label': row.event_id, checked: chosen.has(row.event_id),
    onchange: event => event.target.checked ? chosen.add(row.event_id) : chosen.delete(row.event_id)});
  return [
    make('h2', {}, 'Dead letters'),
    table([
      ['', choose],
      ['Event', row => make('a', {href: `#/dead-letter/${[place.database, place.side, place.name, row.event_id].map(encodeURIComponent).join('/')}`},
                            row.event_id), 'id'],
      ['Type', row => row.event_type],
      ['Aggregate', row => `${row.aggregate_type} ${row.aggregate_id}`, 'text'],
      ['Key', row => row.ordering_key, 'text'],
      ['Attempts', row => row.attempts, 'number'],
      ['Given up', row => time(row.died_at)],
      ['Error', row => row.error, 'error'],
    ], rows, 'none'),
    rows.length === 100 ? make('p', {class: 'hint'}, 'The oldest 100 are shown.') : null,
    rows.length > 0 ? make('p', {},
      make('button', {onclick: () => { shown.forEach(id => chosen.add(id)); show(); }}, 'Choose all shown'), ' ',
      decide('Redrive', 'redrive', 'They are tried again, with all their attempts.'), ' ',
      decide('Discard', 'discard', 'They are given up for good; what waits behind them follows.')) : null,
  ];
}

async function place_page(database, side, name) {
  const place = {database, side, name};
  const [page] = await Promise.all([get('place', place), overview()]); // which remembers figures for the plots
  const status = (Array.isArray(page.status) && page.status[0]) || {};
  const points = points_of(database, side, name);
  const paused = status.paused === true;
  return make('section', {},
    make('h1', {}, `${side === 'outbox' ? 'Destination' : 'Consumer'} ${name} `, status.state ? state(status.state) : ''),
    make('p', {class: 'hint'}, `in ${page.database}`),
    side === 'outbox' && status.state ? make('p', {}, paused
      ? action('Resume', `Resume "${name}"?`, 'Events are delivered again.', 'resume', place)
      : action('Pause', `Pause "${name}"?`, 'Events remain in the log until it is resumed.', 'pause', place)) : null,
    findings(page.health),
    make('h3', {}, 'Events per second'), plot(points, point => point.rate, 'large rate', 'events per second'),
    make('h3', {}, 'Waiting'), plot(points, point => point.waiting, 'large waiting', 'waiting events'),
    dead_letters(place, page.dead_letters),
    make('h2', {}, 'Keys that wait'),
    table([
      ['Key', row => row.ordering_key, 'text'],
      ['Event', row => event_link(row.event_id), 'id'],
      ['State', row => row.state ? state(row.state) : ''],
      ['Attempts', row => row.attempts, 'number'],
      ['Next attempt', row => time(row.next_retry_at || row.next_attempt_at)],
      ['Behind it', row => number(row.waiting), 'number'],
      ['Error', row => row.error, 'error'],
    ], page.keys, 'none'),
    make('h2', {}, 'Operations'),
    table([
      ['At', row => time(row.at)], ['Role', row => row.role], ['Action', row => row.action],
      ['Events', row => number(row.events), 'number'], ['Reason', row => row.why, 'text'],
    ], page.operations, 'none'),
    make('h2', {}, 'Figures'), facts(status, {state}));
}

// ---------------------------------------------------------------------------------------------
// An event
// ---------------------------------------------------------------------------------------------

// JSON is indented for people, but only if no digit of a number is lost by that.
function payload_of(row) {
  if (row.payload === null)
    return row.payload_hex === null ? make('p', {class: 'none'}, 'no payload')
      : [make('p', {class: 'hint'}, `${row.payload_bytes} bytes; the first as hexadecimal digits:`), make('pre', {class: 'payload'}, row.payload_hex)];
  let text = row.payload;
  try {
    if (!/\d{16}|\d\.\d{15}/.test(text))
      text = JSON.stringify(JSON.parse(text), null, 2);
  } catch { /* it is text, or cut off */ }
  return [make('pre', {class: 'payload'}, text),
          row.payload.length === 100000 ? make('p', {class: 'hint'}, `The first 100,000 characters of ${row.payload_bytes} bytes.`) : null];
}

function event_facts(row) {
  const {payload, payload_hex, payload_bytes, ...rest} = row;
  return [facts(rest, {event_id: event_link}), make('h3', {}, 'Payload'), payload_of(row)];
}

async function dead_letter_page(database, side, name, event_id) {
  const place = {database, side, name};
  const rows = await get('dead-letter', {...place, event_id});
  const back = make('p', {}, make('a', {href: link_of(database, side, name)}, `← ${name}`));
  if (rows.error || rows.length === 0)
    return [back, make('p', {class: 'none'}, rows.error || 'The event is not a dead letter (any more).')];
  const ids = {...place, event_ids: event_id};
  return [back, make('h1', {}, `Dead letter of ${name}`),
    make('p', {}, action('Redrive', `Redrive ${event_id}?`, 'It is tried again, with all its attempts.', 'redrive', ids), ' ',
         action('Discard', `Discard ${event_id}?`, 'It is given up for good; what waits behind it follows.', 'discard', ids)),
    event_facts(rows[0])];
}

function step(title, row) {
  const {destination, consumer, state: word, ...rest} = row;
  return make('li', {}, make('strong', {}, title), ' ', state(word), facts(rest, {behind: event_link}));
}

const knows = (rows, ...empty) => Array.isArray(rows) && rows.some(row => !empty.includes(row.state));

async function event_page(event_id) {
  const databases = await get('event', {event_id});
  const errors = databases.filter(database => database.error)
    .map(database => make('div', {class: 'finding failing'}, make('p', {}, `${database.database}: ${database.error}`)));
  const sent = databases.filter(database => knows(database.destinations, 'UNKNOWN', 'GONE') || (database.event || []).length > 0);
  const gone = databases.filter(database => !sent.includes(database) && knows(database.destinations, 'UNKNOWN'));
  const received = databases.filter(database => knows(database.consumers, 'UNKNOWN', 'FORGOTTEN'));
  const event = sent.flatMap(database => Array.isArray(database.event) ? database.event : [])[0];
  return make('section', {}, make('h1', {}, `Event ${event_id}`), errors,
    sent.length + received.length + gone.length === 0 ? make('p', {class: 'none'}, 'No database knows it.') : null,
    make('ol', {class: 'journey'},
      event ? make('li', {}, make('strong', {}, `enqueued in ${sent[0].database}`), ' ', time(event.occurred_at)) : null,
      sent.flatMap(database => (database.destinations || []).map(row => step(
        row.destination ? `${database.database} → ${row.destination}` : database.database, row))),
      gone.flatMap(database => database.destinations.map(row => step(database.database, row))),
      received.flatMap(database => database.consumers.map(row => step(
        row.consumer ? `consumer ${row.consumer} in ${database.database}` : database.database, row)))),
    event ? [make('h2', {}, 'Event'), event_facts(event)] : null);
}

// ---------------------------------------------------------------------------------------------
// Search
// ---------------------------------------------------------------------------------------------

const search_fields = [['event_id', 'Id'], ['topic', 'Topic'], ['event_type', 'Event type'], ['aggregate_type', 'Aggregate type'],
                       ['aggregate_id', 'Aggregate id'], ['ordering_key', 'Ordering key']];

function search_form(asked) {
  return make('form', {class: 'search', onsubmit: event => {
    event.preventDefault();
    const words = new URLSearchParams([...new FormData(event.target)].map(([name, value]) => [name, value.trim()]).filter(([, value]) => value));
    location.hash = words.has('event_id') ? `#/event/${encodeURIComponent(words.get('event_id'))}` : `#/find/${encodeURIComponent(words)}`;
  }}, search_fields.map(([name, title]) => make('label', {}, title, ' ', make('input', {name, value: asked.get(name) || ''}))),
  make('button', {}, 'Search'));
}

// Without a query it shows the form only.
async function find_page(query) {
  const asked = new URLSearchParams(query);
  const databases = query === undefined ? [] : (await get('find', asked)).filter(database => database.error || database.events);
  return make('section', {}, make('h1', {}, 'Search'), search_form(asked),
    make('p', {class: 'hint'}, 'The latest 100 events of the log that match all that is given; for a topic, of the latest 10,000.'),
    databases.map(database => [make('h2', {}, database.database), database.error
      ? make('div', {class: 'finding failing'}, make('p', {}, database.error))
      : table([
        ['Event', row => event_link(row.event_id), 'id'],
        ['Occurred', row => time(row.occurred_at)],
        ['Topic', row => row.topic, 'text'],
        ['Type', row => row.event_type, 'text'],
        ['Aggregate', row => `${row.aggregate_type} ${row.aggregate_id}`, 'text'],
        ['Key', row => row.ordering_key, 'text'],
        ['Version', row => row.version, 'number'],
      ], database.events, 'no event of the log matches')]));
}

// ---------------------------------------------------------------------------------------------
// Pages
// ---------------------------------------------------------------------------------------------

const pages = {'': overview, place: place_page, event: event_page, find: find_page, 'dead-letter': dead_letter_page};
const refreshed = new Set(['', 'place']);
let shown = 0; // number of the latest request to show a page
let timer;

async function show() {
  const mine = ++shown;
  clearTimeout(timer);
  const [name, ...words] = location.hash.replace(/^#\/?/, '').split('/');
  const main = document.querySelector('main');
  try {
    const content = await (pages[name] || overview)(...words.map(decodeURIComponent));
    if (mine !== shown)
      return; // another page was asked for in the meantime
    main.replaceChildren(...[content].flat(Infinity).filter(part => part));
    if (main.dataset.failed)
      say('');
    delete main.dataset.failed;
  } catch (error) {
    if (mine !== shown)
      return;
    main.dataset.failed = 'yes';
    say(error.message);
  }
  if (refreshed.has(name))
    timer = setTimeout(show_again, look_every);
}

// Not while nobody looks, and not while somebody marks text to copy it.
function show_again() {
  if (document.hidden || !getSelection().isCollapsed)
    timer = setTimeout(show_again, look_every);
  else
    show();
}

async function start() {
  session = await get('session');
  document.getElementById('mode').textContent = `${session.writes ? 'changes allowed' : 'read-only'} · ${session.version}`;
  document.getElementById('logout').addEventListener('click', async () => {
    await post('logout');
    location.reload();
  });
  document.getElementById('find').addEventListener('submit', event => {
    event.preventDefault();
    location.hash = `#/event/${encodeURIComponent(new FormData(event.target).get('event_id').trim())}`;
  });
  addEventListener('hashchange', () => {
    chosen.clear();
    say('');
    document.querySelector('main').replaceChildren();
    show();
  });
  show();
}

start();
