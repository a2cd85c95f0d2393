// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// Shows /openapi.json: routes with their fields and answers, and the objects that they name.
'use strict';

function make(tag, name, ...children) {
  const made = document.createElement(tag);
  if (name) made.className = name;
  made.append(...children);
  return made;
}

// A schema in a few words; objects that have a name become links to it.
function typeOf(schema) {
  if (!schema || !Object.keys(schema).length) return ['anything'];
  if (schema.$ref) {
    const name = schema.$ref.split('/').pop();
    const link = make('a', '', name);
    link.href = `#${name}`;
    return [link];
  }
  if (schema.const !== undefined) return [JSON.stringify(schema.const)];
  if (schema.enum) return [schema.enum.map((value) => JSON.stringify(value)).join(', ')];
  const options = schema.anyOf || schema.oneOf;
  if (options) {
    const shown = options.filter((option) => option.type !== 'null');
    return shown.flatMap((option, i) => (i ? [' or ', ...typeOf(option)] : typeOf(option)));
  }
  if (schema.type === 'array') return ['list of ', ...typeOf(schema.items)];
  return [schema.type || 'anything'];
}

function fields(schema) {
  const table = make('table', '');
  const required = new Set(schema.required || []);
  for (const [name, field] of Object.entries(schema.properties || {})) {
    const label = make('td', '', make('code', '', name), required.has(name) ? ' *' : '');
    table.append(make('tr', '', label, make('td', '', ...typeOf(field)),
      make('td', '', field.description || '')));
  }
  return table;
}

function route(method, path, operation) {
  const title = make('summary', '', make('strong', '', method.toUpperCase()), ' ',
    make('code', '', path), ' ', operation.description || '');
  const body = operation.requestBody?.content?.['application/json']?.schema;
  const made = make('details', 'call', title);
  if (body) made.append(make('p', '', 'Body: ', ...typeOf(body)));
  const answers = make('table', '');
  for (const [status, answer] of Object.entries(operation.responses)) {
    const kinds = Object.entries(answer.content || {}).flatMap(([kind, content], i) => [
      i ? '; ' : '', `${kind}: `, ...typeOf(content.schema)]);
    answers.append(make('tr', '', make('td', '', status), make('td', '', answer.description),
      make('td', '', ...kinds)));
  }
  made.append(answers);
  return made;
}

async function show() {
  const page = await (await fetch('/openapi.json')).json();
  document.getElementById('version').textContent = page.info.version;
  document.getElementById('lead').textContent = page.info.description;
  for (const [path, operations] of Object.entries(page.paths)) {
    for (const [method, operation] of Object.entries(operations)) {
      document.getElementById('routes').append(route(method, path, operation));
    }
  }
  for (const [name, schema] of Object.entries(page.components.schemas)) {
    const made = make('section', 'answer', make('h3', '', name),
      make('p', '', schema.description || ''), fields(schema));
    made.id = name;
    document.getElementById('objects').append(made);
  }
  if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
}

show();
