"""Builds NAS messages with pycrate (an independent implementation) and prints `name hex` lines.

    python3 -m venv v && v/bin/pip install pycrate==0.8.1 && v/bin/python generate.py > pycrate.txt

Element values are built with pycrate's element classes, not given as octets, wherever it has a class.
"""
from pycrate_mobile.TS24501_FGMM import *
from pycrate_mobile.TS24501_FGSM import *
from pycrate_mobile.TS24501_IE import *
from pycrate_mobile.TS24008_IE import GPRSTimer, GPRSTimer3, ProtConfig


def out(name, message):
    print(name, message.to_bytes().hex())


def val(cls, value):
    element = cls()
    element.set_val(value)
    return element.to_bytes()


plmn = '99970'
element = FGSIDSUPI(val={'Fmt': 0, 'Type': 1})
value = element['Value'].get_alt()
value[0].encode(plmn)
value[1].encode('0123')
value[5].get_alt().encode('0000000001')
suci = element.to_bytes()


def guti_of(tmsi):
    guti = FGSIDGUTI(val={'AMFRegionID': 2, 'AMFSetID': 1, 'AMFPtr': 3, '5GTMSI': tmsi})
    guti['PLMN'].encode(plmn)
    return guti.to_bytes()


guti = guti_of(0xc0000001)
stmsi = val(FGSIDSTMSI, {'AMFSetID': 1, 'AMFPtr': 3, '5GTMSI': 0xc0000001})
secap = UESecCap(val={'5G-EA0': 1, '5G-EA1_128': 1, '5G-EA2_128': 1, '5G-IA1_128': 1, '5G-IA2_128': 1,
                      'EEA0': 1, 'EEA2_128': 1, 'EIA1_128': 1, 'EIA2_128': 1}).to_bytes()[:4]


def slice_lv(*values):
    body = val(SNSSAI, list(values))
    return bytes([len(body)]) + body


nssai = slice_lv(1, 0x010203) + slice_lv(2)
tai = FGSTAI(val={'TAC': 7})
tai['PLMN'].encode(plmn)
psi = PDUSessStat(val={'PSI_5': 1, 'PSI_15': 1}).to_bytes()

out('registration_request_suci', FGMMRegistrationRequest(val={
    '5GSRegType': {'FOR': 1, 'Value': 1}, '5GSID': suci, 'UESecCap': secap, 'NSSAI': nssai}))
out('registration_request_guti', FGMMRegistrationRequest(val={
    '5GSRegType': {'FOR': 0, 'Value': 2}, '5GSID': guti, 'PDUSessStat': psi}))
out('registration_accept', FGMMRegistrationAccept(val={
    '5GSRegResult': b'\x01', 'GUTI': guti, 'AllowedNSSAI': nssai, '5GSTAIList': bytes([0]) + tai.to_bytes(),
    'T3512': val(GPRSTimer3, {'Unit': 0, 'Value': 6}), 'T3502': val(GPRSTimer, {'Unit': 1, 'Value': 12})}))
out('registration_complete', FGMMRegistrationComplete())
out('registration_reject', FGMMRegistrationReject(val={'5GMMCause': 11}))
out('deregistration_request_ue', FGMMMODeregistrationRequest(val={
    'DeregistrationType': {'SwitchOff': 1, 'ReregistrationRequired': 0, 'AccessType': 1}, '5GSID': guti}))
out('service_request', FGMMServiceRequest(val={'5GSID': stmsi, 'ULDataStat': psi}))
out('authentication_request', FGMMAuthenticationRequest(val={
    'ABBA': b'\0\0', 'RAND': bytes(range(16)), 'AUTN': bytes(range(16, 32))}))
out('authentication_response', FGMMAuthenticationResponse(val={'RES': bytes(range(16))}))
out('authentication_failure', FGMMAuthenticationFailure(val={'5GMMCause': 21, 'AUTS': bytes(range(14))}))
out('identity_request', FGMMIdentityRequest(val={'5GSIDType': 1}))
out('identity_response', FGMMIdentityResponse(val={'5GSID': suci}))
out('security_mode_command', FGMMSecurityModeCommand(val={
    'NASSecAlgo': {'CiphAlgo': 2, 'IntegAlgo': 1}, 'UESecCap': secap, 'IMEISVReq': 1}))
out('security_mode_complete', FGMMSecurityModeComplete(val={'NASContainer': bytes.fromhex('7e0043')}))
out('status', FGMMStatus(val={'5GMMCause': 97}))

estab = FGSMPDUSessionEstabRequest(val={'5GSMHeader': {'PDUSessID': 5, 'PTI': 1}, 'PDUSessType': 3, 'SSCMode': 1, 'ExtProtConfig': {
    'Config': [{'ID': 0x000d}, {'ID': 0x0010}, {'ID': 0x0003}]}})
out('sm_establishment_request', estab)
out('ul_nas_transport', FGMMULNASTransport(val={
    'PayloadContainerType': 1, 'PayloadContainer': estab.to_bytes(), 'PDUSessID': 5, 'RequestType': 1,
    'SNSSAI': val(SNSSAI, [1, 0x010203]), 'DNN': b'\x08internet'}))
rule = QoSRule(val={'ID': 1, 'OpCode': 1, 'DQR': 1, 'Precedence': 255, 'Flow': {'QFI': 1}, 'PktFilterList': [
    {'Dir': 3, 'Id': 1, 'PktFilter': [{'Type': 1}]},
    {'Dir': 2, 'Id': 2, 'PktFilter': [
        {'Type': 16, 'Value': {'Addr': bytes([192, 0, 2, 0]), 'Mask': bytes([255, 255, 255, 0])}},
        {'Type': 48, 'Value': 17}, {'Type': 81, 'Value': {'Low': 5000, 'High': 6000}}]}]})
flow = QoSFlow(val={'QFI': 1, 'OpCode': 1, 'Params': [
    {'Type': 1, 'Content': 9}, {'Type': 4, 'Content': {'Unit': 6, 'Value': 50}}]})
accept = FGSMPDUSessionEstabAccept(val={
    '5GSMHeader': {'PDUSessID': 5, 'PTI': 1}, 'PDUSessType': 1, 'SSCMode': 1, 'QoSRules': rule.to_bytes(),
    'SessAMBR': {'DLUnit': 11, 'DL': 1, 'ULUnit': 6, 'UL': 500},
    'PDUAddress': val(PDUAddress, {'Type': 1, 'Addr': bytes([10, 45, 0, 2])}),
    'SNSSAI': val(SNSSAI, [1]), 'QoSFlowDesc': flow.to_bytes(), 'DNN': b'\x08internet'})
out('sm_establishment_accept', accept)
out('dl_nas_transport', FGMMDLNASTransport(val={
    'PayloadContainerType': 1, 'PayloadContainer': accept.to_bytes(), 'PDUSessID': 5}))
out('sm_establishment_reject', FGSMPDUSessionEstabReject(val={
    '5GSMHeader': {'PDUSessID': 5, 'PTI': 1}, '5GSMCause': 27}))
out('sm_release_request', FGSMPDUSessionReleaseRequest(val={'5GSMHeader': {'PDUSessID': 5, 'PTI': 2}, '5GSMCause': 36}))
out('sm_release_command', FGSMPDUSessionReleaseCommand(val={'5GSMHeader': {'PDUSessID': 5, 'PTI': 2}, '5GSMCause': 36}))
out('sm_release_complete', FGSMPDUSessionReleaseComplete(val={'5GSMHeader': {'PDUSessID': 5, 'PTI': 2}}))
out('sm_status', FGSMStatus(val={'5GSMHeader': {'PDUSessID': 5, 'PTI': 2}, '5GSMCause': 97}))
